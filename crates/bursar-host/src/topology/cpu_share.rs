//! The division of a node's CPUs among the GPUs on it.

use super::Topology;
use crate::IndexSet;
use bursar_core::{NumaNode, PciAddress};

impl Topology {
    /// Returns the CPUs for the threads that serve a GPU: those of its node, or of the nearest one that has any, shared
    /// fairly with the other GPUs that are served from there. Every process gets the same result, whichever GPUs it may use
    /// itself.
    ///
    /// GPUs get whole cores, in consecutive runs, and no two differ by more than one core. A core serves several GPUs only
    /// where there are more GPUs than cores. A GPU whose node is unknown gets every CPU.
    pub fn cpus_of_gpu(&self, pci: PciAddress) -> IndexSet {
        let Some(serving) = self.node_of(pci).index().and_then(|node| self.cpus_near(node)) else {
            return self.cpus.clone();
        };
        let is_served = |node: NumaNode| node.index().and_then(|node| self.cpus_near(node)) == Some(serving);
        let rivals: Vec<_> = self.gpus.iter().filter(|gpu| is_served(gpu.node)).map(|gpu| gpu.pci).collect();
        let rank = rivals.iter().position(|rival| *rival == pci).unwrap_or(0);
        let cores: Vec<_> =
            self.cores.iter().map(|core| core.and(&serving.cpus)).filter(|core| !core.is_empty()).collect();
        share(&cores, rank, rivals.len()).iter().flat_map(|core| core.iter().collect::<Vec<_>>()).collect()
    }
}

/// Returns the part of `cores` for the GPU of `rank` among `rivals`: never empty unless there are no cores.
fn share(cores: &[IndexSet], rank: usize, rivals: usize) -> &[IndexSet] {
    if cores.len() < rivals {
        let at = if cores.is_empty() { 0 } else { rank % cores.len() };
        return cores.get(at..=at).unwrap_or(cores);
    }
    let border = |rank: usize| cores.len() * rank / rivals.max(1);
    &cores[border(rank)..border(rank + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn n1_cores_are_shared_whole_and_fairly(cores in 1u32..40, rivals in 1usize..12) {
            let cores: Vec<IndexSet> = (0..cores).map(|core| [core, core + 100].into_iter().collect()).collect();
            let shares: Vec<_> = (0..rivals).map(|rank| share(&cores, rank, rivals)).collect();
            let (least, most) = (shares.iter().map(|share| share.len()).min(), shares.iter().map(|share| share.len()).max());
            prop_assert!(least.is_some_and(|least| least > 0) && most <= least.map(|least| least + 1));
            if cores.len() >= rivals {
                prop_assert_eq!(shares.concat(), cores, "each core is somebody's, and one GPU's alone");
            }
        }
    }
}
