//! Which CPUs are whose, where several GPUs sit on one node.

use super::Topology;
use crate::IndexSet;
use bursar_core::{NumaNode, PciAddress};

impl Topology {
    /// The CPUs for the threads that feed a GPU: those of its node, or of the nearest one that has any, shared fairly
    /// with the other GPUs that are served from there. Every process that looks comes to the same answer, whichever GPUs
    /// it may use itself.
    ///
    /// GPUs get whole cores, in runs that follow each other, and no two differ by more than one core. Only where there
    /// are more GPUs than cores does one core serve several. A GPU whose node is unknown gets every CPU.
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

/// The part of `cores` that is for the one of `rank` among `rivals`: never none while there is a core at all.
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
