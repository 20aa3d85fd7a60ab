//! What is shown: a plan a scene, with the words around it.

/// A leak that is made and attacked.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// Its name, and that of its directory and plan.
    pub name: &'static str,
    /// What leaks, and whose records.
    pub title: &'static str,
    /// Who has it and what is done with it.
    pub lead: &'static str,
    /// Its plan.
    pub plan: &'static str,
    /// What of the plan is changed when time is short; `None` if it is left out then.
    pub quick: Option<&'static [&'static str]>,
}

macro_rules! plan {
    ($name:literal) => {
        include_str!(concat!("../../demo/", $name, ".toml"))
    };
}

/// The run that labels and the row space are read off.
pub(super) const EXACT: &str = "exact";
/// The run that defends itself.
pub(super) const DEFENDED: &str = "defended";

/// Every scene, in the order in which they are shown.
pub const SCENES: &[Scene] = &[
    Scene {
        name: EXACT,
        title: "One gradient: thirty-two photographs",
        lead: "A federated-learning client took one step on 32 photographs and shared the gradient. Whoever sees it \
               solves for the batch: `exact`, a method of our own.",
        plan: plan!("exact"),
        quick: Some(&[]),
    },
    Scene {
        name: "gradinversion",
        title: "The gradient of a convolutional network: photographs",
        lead: "A client shared the gradient of a convolutional network together with its batch-norm statistics. Photographs \
               are searched for that would have given both: GradInversion (Yin et al., 2021).",
        plan: plan!("gradinversion"),
        quick: Some(&["attack.iterations=800"]),
    },
    Scene {
        name: "tensor",
        title: "A gradient at random weights: digits",
        lead: "At random weights the units of a wide layer are independent measurements of the batch: its gradient is \
               decomposed as a tensor (Wang et al., 2023), and the estimate is fitted until nothing is left.",
        plan: plan!("tensor"),
        quick: Some(&["data.members=3", "network.width=1000"]),
    },
    Scene {
        name: "kkt",
        title: "Final weights: photographs",
        lead: "Somebody published a classifier. Nothing but its weights is needed: trained to its end, they are a sum over \
               the records on the margin (Haim et al., 2022). This is the published search, for 1,000 of its steps.",
        plan: plan!("kkt"),
        quick: None,
    },
    Scene {
        name: "unmix",
        title: "Final weights: photographs, unmixed",
        lead: "Twenty photographs from nothing but the weights of a published classifier, by a method of our own: the rows of its \
               first layer are mixtures of the records, and are unmixed.",
        plan: plan!("unmix"),
        quick: Some(&[]),
    },
    Scene {
        name: "circle",
        title: "Final weights: points of the plane",
        lead: "The experiment that explains the others: points of a circle with labels in turn, and a classifier of which only \
               the weights are known. Its kinks meet where its records lie.",
        plan: plan!("circle"),
        quick: Some(&[]),
    },
    Scene {
        name: "ntk",
        title: "Two checkpoints: digits",
        lead: "Whoever has the weights from before training too, as everybody does who fine-tunes a published model, sees their \
               change: a sum over all records (Loo et al., 2023).",
        plan: plan!("ntk"),
        quick: Some(&["network.hidden=[512, 512]", "data.members=12"]),
    },
    Scene {
        name: "autoencoder",
        title: "An autoencoder and damaged copies: digits",
        lead: "Every other row of each record is erased. What the autoencoder was trained on comes back whole, what it was not \
               does not: fixed points that agree with what is left, after the ADMM of the published method.",
        plan: plan!("autoencoder"),
        quick: Some(&[]),
    },
    Scene {
        name: DEFENDED,
        title: "A defence: noise on the gradient",
        lead: "The client adds noise of three times the gradient's own size before it shares it. The same attack, at the same \
               settings, is run on a twin without noise: it works there.",
        plan: plan!("defended"),
        quick: Some(&[]),
    },
];
