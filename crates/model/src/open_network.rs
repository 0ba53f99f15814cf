//! One network and the file that it is in: a source of parameters under our names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, Storage};
use impasto_weights::{
    AppliedLora, Checkpoint, FileParams, LoraBranches, ParamLocation, SharedSource, TensorProblems, WeightSource,
};

use crate::{ModelError, Network, RecognisedNetwork, TensorShapes};

/// A network of a model and the file that it is in, all of its parameters found.
///
/// It gives parameters under the names of the graphs ([`unet`](crate::unet()) and the others), whatever the file calls them.
#[derive(Clone)]
pub struct OpenNetwork {
    /// Its structure and sizes.
    pub network: Arc<dyn Network>,
    prefix: String,
    params: Arc<FileParams>,
    branches: Option<Arc<LoraBranches>>,
}

impl OpenNetwork {
    /// Find every parameter of `found` in the file, in its shape, before anything is packed.
    pub(crate) fn new(
        what: &'static str,
        found: &RecognisedNetwork,
        path: &Path,
        checkpoint: &Arc<Checkpoint>,
        shapes: &TensorShapes,
    ) -> Result<OpenNetwork, ModelError> {
        let graphs = found.graphs().map_err(|source| ModelError::Graph {
            path: path.into(),
            part: what,
            source: source.into(),
        })?;
        let mut params = BTreeMap::new();
        for graph in &graphs {
            for (name, value) in graph.params() {
                let stored = found.stored(name, shapes);
                let shape = graph.ty(value).shape.clone();
                params.insert(name.to_string(), ParamLocation::new(stored.name, stored.take, shape));
            }
        }
        let wrong = |problems| ModelError::Tensors { path: path.into(), part: what, problems };
        let params = FileParams::find(path, checkpoint, params).map_err(wrong)?;
        let (network, prefix, params) = (found.network.clone(), found.prefix.clone(), Arc::new(params));
        Ok(OpenNetwork { network, prefix, params, branches: None })
    }

    /// The same network, some of its parameters converted while they are read, as `of` says by name and place.
    pub(crate) fn read_as(
        &self,
        of: &dyn Fn(&str, &ParamLocation) -> Option<Storage>,
    ) -> Result<OpenNetwork, ModelError> {
        let (path, part) = (self.params.path().to_owned(), self.network.kind().name());
        let params = self.params.read_as(of).map_err(|problems| ModelError::Tensors { path, part, problems })?;
        Ok(OpenNetwork { params: Arc::new(params), ..self.clone() })
    }

    /// What the names of its tensors in the file begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name in its file of a parameter, one that it has or one that it should have.
    pub fn tensor_name(&self, parameter: &str) -> String {
        format!("{}{}", self.prefix, self.network.stored(parameter, &|_| false).name)
    }

    /// The network, changed by LoRAs whose modules are known.
    pub(crate) fn with_loras(&self, loras: Vec<AppliedLora>) -> Result<OpenNetwork, ModelError> {
        let path = loras.first().map(|lora| lora.file.path().to_path_buf()).unwrap_or_default();
        let wrong = |problems: TensorProblems| ModelError::Lora { path, problem: problems.to_string() };
        let params = Arc::new(self.params.with_loras(loras).map_err(wrong)?);
        Ok(OpenNetwork { params, ..self.clone() })
    }

    /// The network with LoRAs as branches beside its products, its own parameters as they are; and what of the LoRAs can be no branch.
    pub(crate) fn with_branches(&self, loras: Vec<AppliedLora>) -> Result<(OpenNetwork, Vec<AppliedLora>), GraphError> {
        let graphs = self.network.graphs()?;
        let (mut products, mut others) = (BTreeSet::new(), BTreeSet::new());
        for graph in &graphs {
            let own = graph.product_weights();
            others.extend(graph.params().map(|(name, _)| name).filter(|name| !own.contains(name)).map(String::from));
            products.extend(own.into_iter().map(String::from));
        }
        products.retain(|param| !others.contains(param));
        let (branches, rest) = self.params.branches(loras, &products);
        Ok((OpenNetwork { branches: branches.map(Arc::new), ..self.clone() }, rest))
    }

    /// A graph of this network as its parameters are: stored as they are in the files, with the branches of LoRAs.
    pub fn as_stored(&self, graph: Graph) -> Result<Graph, GraphError> {
        let mut graph = match &self.branches {
            Some(branches) => graph.with_branches(|param| branches.rank(param))?,
            None => graph,
        };
        graph.set_storages(|name| Some(self.params.describe(name).ok()?.storage))?;
        Ok(graph)
    }

    /// LoRAs that are branches beside its products.
    pub fn branches(&self) -> Option<&Arc<LoraBranches>> {
        self.branches.as_ref()
    }

    /// Whether the files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.params.is_unchanged() && self.branches.as_ref().is_none_or(|branches| branches.is_unchanged())
    }

    /// Its parameters, for a backend that packs them.
    pub fn source(&self) -> SharedSource {
        self.params.clone()
    }
}

/// What holds of any parameters in files: their path, storage, bytes and fingerprint.
impl Deref for OpenNetwork {
    type Target = FileParams;

    fn deref(&self) -> &FileParams {
        &self.params
    }
}
