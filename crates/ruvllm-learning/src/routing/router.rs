//! A trained router in a folder: what chooses among models, and what it needs for that.

use std::path::{Path, PathBuf};

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_router::roles::{RoleClassifier, Verdict};
use ruvllm_router::routes::{RouteMatch, SemanticRoutes};
use ruvllm_router::{
    AnswerCosts, Choice, HashedWords, Model, Prediction, RouterError, Selector, Weighing, choose_by, expected_costs,
    features,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::NearestIndex;

const ABOUT: &str = "router.json";
const SELECTOR: &str = "selector.safetensors";
const COSTS: &str = "costs.safetensors";
const ROLES: &str = "roles.safetensors";
const ROUTES: &str = "routes.safetensors";

/// The widest hashed words.
const DIM_MAX: usize = 1 << 14;

/// Name of the embedder of queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedderName {
    /// Hashed words of this many values: no model.
    Hashed(usize),
    /// The model of this name, whose vectors have this many values.
    Model(String, usize),
}

impl EmbedderName {
    /// Returns the length of its vectors.
    pub fn dim(&self) -> usize {
        match self {
            EmbedderName::Hashed(dim) | EmbedderName::Model(_, dim) => *dim,
        }
    }

    /// Returns the embedding of a text, where that needs no model.
    pub fn embed(&self, text: &str) -> Option<Vec<f32>> {
        match self {
            EmbedderName::Hashed(dim) => Some(HashedWords::new(*dim).vector(text)),
            EmbedderName::Model(..) => None,
        }
    }
}

/// Chooses a model for a query, and says which role and which named route it belongs to.
pub struct ModelRouter {
    /// Model that makes embeddings.
    pub embedder: EmbedderName,
    /// The models, with what an answer of theirs costs on average, in the order of the selector.
    pub models: Vec<Model>,
    /// Weighing of quality and cost.
    pub weighing: Weighing,
    /// Expects the quality of each model.
    pub selector: Selector,
    /// Expects the cost of each model's answer to a query; without it, all answers of a model cost the same.
    pub costs: Option<AnswerCosts>,
    /// Finds the role, if it was trained.
    pub roles: Option<RoleClassifier>,
    /// Finds the named route, if there are some.
    pub routes: Option<SemanticRoutes<NearestIndex>>,
}

/// Decision of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The name of the model.
    pub model: String,
    /// The model, its expected quality and cost, and the reason of the choice.
    pub choice: Choice,
    /// Expected quality and cost of all models, and the settings that suit.
    pub prediction: Prediction,
    /// The role, if roles were trained.
    pub role: Option<Verdict>,
    /// The named route, if there are some and one fits.
    pub route: Option<RouteMatch>,
}

impl ModelRouter {
    /// Decides on a query with its embedding: `[embedder.dim()]`.
    ///
    /// # Errors
    /// The embedding has another length.
    pub fn decide(&self, text: &str, embedding: &[f32]) -> Result<Decision, EngineError> {
        self.decide_by(text, embedding, self.weighing)
    }

    /// Decides with a weighing in place of the router's own.
    ///
    /// # Errors
    /// Also a weighing that is not sound.
    pub fn decide_by(&self, text: &str, embedding: &[f32], weighing: Weighing) -> Result<Decision, EngineError> {
        let query = [&features::of(text)[..], embedding].concat();
        let prediction = self.selector.predict(&query).map_err(routed)?;
        let costs = expected_costs(self.costs.as_ref(), &self.models, &query).map_err(routed)?;
        let choice = choose_by(&self.selector, &self.models, &costs, &prediction, weighing).map_err(routed)?;
        let role = self.roles.as_ref().map(|roles| roles.classify(text, embedding)).transpose().map_err(routed)?;
        let route = match &self.routes {
            Some(routes) => routes.route(embedding).map_err(routed)?,
            None => None,
        };
        Ok(Decision { model: self.models[choice.model].name.clone(), choice, prediction, role, route })
    }

    /// Writes the router into a folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), EngineError> {
        let embedder = match &self.embedder {
            EmbedderName::Hashed(dim) => json!({ "kind": "hashed", "dim": dim }),
            EmbedderName::Model(name, dim) => json!({ "kind": "model", "name": name, "dim": dim }),
        };
        let models = self.models.iter().map(|model| json!({ "name": model.name, "cost": model.cost }));
        let about = json!({
            "version": 1, "embedder": embedder, "weighing": self.weighing, "models": models.collect::<Vec<_>>(),
        });
        std::fs::create_dir_all(folder).map_err(|error| io("make", folder, error))?;
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| io("write", &path, error))
        };
        let gone = |name: &str| match std::fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", &folder.join(name), error)),
            _ => Ok(()),
        };
        write(SELECTOR, &self.selector.to_bytes())?;
        self.costs.as_ref().map_or_else(|| gone(COSTS), |costs| write(COSTS, &costs.to_bytes()))?;
        self.roles.as_ref().map_or_else(|| gone(ROLES), |roles| write(ROLES, &roles.to_bytes()))?;
        self.routes.as_ref().map_or_else(|| gone(ROUTES), |routes| write(ROUTES, &routes.to_bytes()))?;
        write(ABOUT, format!("{about:#}\n").as_bytes())
    }

    /// Reads what [`ModelRouter::save`] wrote. The files may come from anywhere.
    ///
    /// # Errors
    /// A file is missing, damaged, or contradicts another.
    pub fn open(folder: &Path) -> Result<ModelRouter, EngineError> {
        let path = folder.join(ABOUT);
        let about: Value = serde_json::from_slice(&read(&path)?)
            .map_err(|error| invalid(&path, &format!("it is no JSON: {error}")))?;
        let wrong = |what: &str| invalid(&path, &format!("'{what}' is missing or of another kind"));
        if about["version"] != 1 {
            return Err(invalid(&path, &format!("version {} of a router; this program reads 1", about["version"])));
        }
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x >= 0.0);
        let dim = about["embedder"]["dim"].as_u64().map(|dim| dim as usize).filter(|dim| (1..=DIM_MAX).contains(dim));
        let dim = dim.ok_or_else(|| wrong("embedder.dim"))?;
        let embedder = match (about["embedder"]["kind"].as_str(), about["embedder"]["name"].as_str()) {
            (Some("hashed"), _) => EmbedderName::Hashed(dim),
            (Some("model"), Some(name)) => EmbedderName::Model(name.to_owned(), dim),
            _ => return Err(wrong("embedder")),
        };
        let weighing = Weighing::deserialize(&about["weighing"]).ok().filter(|weighing| weighing.is_sound());
        let weighing = weighing.ok_or_else(|| wrong("weighing"))?;
        let model =
            |model: &Value| Some(Model { name: model["name"].as_str()?.to_owned(), cost: number(&model["cost"])? });
        let models = about["models"].as_array().and_then(|models| models.iter().map(model).collect::<Option<Vec<_>>>());
        let models = models.ok_or_else(|| wrong("models"))?;
        let optional = |name: &str| folder.join(name).is_file().then(|| read(&folder.join(name))).transpose();
        let selector = Selector::from_bytes(&read(&folder.join(SELECTOR))?).map_err(routed)?;
        if !models.iter().map(|model| &model.name).eq(selector.models())
            || selector.n_query() != features::N_FEATURES + dim
        {
            return Err(invalid(&path, "its models or its embedder are not those of the selector; train it anew"));
        }
        let costs = optional(COSTS)?.map(|bytes| AnswerCosts::from_bytes(&bytes)).transpose().map_err(routed)?;
        if costs.as_ref().is_some_and(|costs| (costs.n_query(), costs.n_models()) != (selector.n_query(), models.len()))
        {
            return Err(invalid(&path, "its costs are not those of the selector; train it anew"));
        }
        let roles = optional(ROLES)?.map(|bytes| RoleClassifier::from_bytes(&bytes)).transpose().map_err(routed)?;
        let routes = match optional(ROUTES)? {
            None => None,
            Some(bytes) => {
                let index = NearestIndex::new(dim).map_err(routed)?;
                Some(SemanticRoutes::from_bytes(index, &bytes).map_err(routed)?)
            }
        };
        Ok(ModelRouter { embedder, models, weighing, selector, costs, roles, routes })
    }
}

impl std::fmt::Debug for ModelRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelRouter")
            .field("models", &self.models)
            .field("embedder", &self.embedder)
            .finish_non_exhaustive()
    }
}

fn routed(error: RouterError) -> EngineError {
    EngineError::new(ErrorKind::Routing, error.to_string()).with_source(error)
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    std::fs::read(path).map_err(|error| io("read", path, error))
}

fn io(doing: &str, path: &Path, error: std::io::Error) -> EngineError {
    let line = format!("the router: cannot {doing} {}: {error}", path.display());
    EngineError::new(ErrorKind::Routing, line).with_source(error)
}

fn invalid(path: &Path, why: &str) -> EngineError {
    EngineError::new(ErrorKind::Routing, format!("the router in {}: {why}", PathBuf::from(path).display()))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use ruvllm_router::roles::{RoleOptions, examples};
    use ruvllm_router::{Outcome, Rows, TrainOptions};

    use super::*;

    fn router() -> ModelRouter {
        let embedder = EmbedderName::Hashed(64);
        let embed = |text: &str| embedder.embed(text).expect("no model is needed");
        let outcomes: Vec<Outcome> = (0..64u16)
            .map(|i| {
                let easy = i % 2 == 0;
                let text =
                    if easy { format!("what is {i}?") } else { "explain step by step, ".repeat(9) + &i.to_string() };
                let query = [&features::of(&text)[..], &embed(&text)].concat();
                Outcome { query, group: i.into(), qualities: vec![Some(f32::from(easy)), Some(1.0)], settings: None }
            })
            .collect();
        let (mut queries, mut paid) = (Rows::new(outcomes[0].query.len()), Rows::new(2));
        for (i, outcome) in outcomes.iter().enumerate() {
            queries.push(&outcome.query).expect("it fits");
            paid.push(&if i % 2 == 0 { [1.0, 4.0] } else { [5.0, 20.0] }).expect("it fits");
        }
        let options = TrainOptions { n_epochs: 8, ..TrainOptions::default() };
        let selector = Selector::train(&["small", "large"], &outcomes, &options, |_| ControlFlow::Continue(()));
        let some: Vec<_> = examples().into_iter().step_by(6).collect();
        let mut rows = Rows::new(64);
        some.iter().for_each(|example| rows.push(&embed(&example.prompt)).expect("it fits"));
        let mut routes = SemanticRoutes::new(NearestIndex::new(64).expect("a width"));
        routes.add_route("refunds", 0.4).expect("a new name");
        routes.add_example("refunds", &embed("I want my money back")).expect("it fits");
        let model = |name: &str, cost| Model { name: name.into(), cost };
        ModelRouter {
            models: vec![model("small", 1.0), model("large", 8.0)],
            weighing: Weighing::Within(0.2),
            selector: selector.expect("outcomes that fit"),
            costs: Some(AnswerCosts::fit(&queries, &paid).expect("costs that fit")),
            roles: Some(RoleClassifier::train(&some, &rows, &RoleOptions::default()).expect("examples")),
            routes: Some(routes),
            embedder,
        }
    }

    #[test]
    fn a_router_comes_back_and_decides_the_same() {
        let (router, folder) = (router(), tempfile::tempdir().expect("a folder"));
        router.save(folder.path()).expect("writable");
        let back = ModelRouter::open(folder.path()).expect("its own files");
        for text in ["what is 7?", "explain step by step, explain step by step, why", "give me my money back"] {
            let embedding = router.embedder.embed(text).expect("no model is needed");
            let decision = router.decide(text, &embedding).expect("it fits");
            assert_eq!(back.decide(text, &embedding).expect("it fits"), decision);
            assert!(decision.role.is_some() && decision.choice.reason.starts_with(&decision.model));
        }
        let embedding = back.embedder.embed("what is 7?").expect("no model is needed");
        assert_eq!(back.decide("what is 7?", &embedding).expect("it fits").model, "small");
        assert!(back.decide("x", &[0.0; 3]).is_err());
        // What an answer costs depends on the query.
        let cost = |text: &str| {
            back.decide(text, &back.embedder.embed(text).expect("no model is needed")).expect("it fits").choice.cost
        };
        assert!(cost("what is 7?") < 2.0, "{}", cost("what is 7?"));
        assert!(cost(&"explain step by step, ".repeat(9)) > 12.0);
        // Without costs, roles and routes, those of before are gone.
        ModelRouter { costs: None, roles: None, routes: None, ..router }.save(folder.path()).expect("writable");
        let back = ModelRouter::open(folder.path()).expect("its own files");
        assert!(back.costs.is_none() && back.roles.is_none() && back.routes.is_none());
        let embedding = back.embedder.embed("what is 7?").expect("no model is needed");
        assert_eq!(back.decide("what is 7?", &embedding).expect("it fits").choice.cost, 1.0);
    }

    #[test]
    fn damaged_folders_are_refused_in_a_line() {
        let (router, folder) = (router(), tempfile::tempdir().expect("a folder"));
        let line = |folder: &Path| ModelRouter::open(folder).expect_err("it is damaged").to_string();
        assert!(line(folder.path()).contains("cannot read"));
        router.save(folder.path()).expect("writable");
        let about = std::fs::read_to_string(folder.path().join(ABOUT)).expect("written");
        for (old, new, why) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"dim\": 64", "\"dim\": 65", "not those of the selector"),
            ("\"dim\": 64", "\"dim\": 0", "embedder.dim"),
            ("\"small\"", "\"other\"", "not those of the selector"),
            ("\"within\"", "\"by\"", "weighing"),
            ("{", "[", "no JSON"),
        ] {
            std::fs::write(folder.path().join(ABOUT), about.replacen(old, new, 1)).expect("writable");
            assert!(line(folder.path()).contains(why), "{}", line(folder.path()));
        }
        std::fs::write(folder.path().join(ABOUT), about).expect("writable");
        std::fs::write(folder.path().join(SELECTOR), b"x").expect("writable");
        assert!(!line(folder.path()).contains('\n'));
    }
}
