//! What every attack has in common, and the closed set of them.

use serde::{Deserialize, Serialize};

// By its name on the command line; the crate has another `Tensor`.
use crate::TensorDecomposition as Tensor;
use crate::autoencoder::Autoencoder;
use crate::gradinversion::GradInversion as Gradinversion;
use crate::kkt::Kkt;
use crate::labels::Labels;
use crate::ntk::Ntk;
use crate::unmix::Unmix;
use crate::{
    AeIterations, Analytic, Exact, Inpaint, Kind, Kinks, ModelInversion, Observation, Reconstruction, Session, View,
    WeightRows,
};

/// Why an attack could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttackError {
    /// The observation is of another kind than the attack needs.
    #[error("attack `{attack}` needs {needs}, and the observation is {found}")]
    WrongObservation {
        /// The attack.
        attack: &'static str,
        /// What it needs.
        needs: Kind,
        /// What it was given.
        found: Kind,
    },
    /// The observation is of the right kind, but the method cannot work on it.
    #[error("attack `{attack}` does not apply: {reason}\n  hint: {hint}")]
    NotApplicable {
        /// The attack.
        attack: &'static str,
        /// Why not.
        reason: String,
        /// What would work.
        hint: String,
    },
    /// A file that does not hold what it should.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A computation failed.
    #[error(transparent)]
    Nn(#[from] afterimage_nn::Error),
}

impl AttackError {
    /// A setting that is out of range.
    pub(crate) fn setting(setting: &'static str, value: impl ToString, expected: &str) -> Self {
        afterimage_nn::Error::Setting { setting, value: value.to_string(), expected: expected.into() }.into()
    }
}

/// Fails, naming the first setting that is no positive number.
pub(crate) fn all_positive(settings: impl IntoIterator<Item = (&'static str, f64)>) -> Result<(), AttackError> {
    match settings.into_iter().find(|(_, value)| !(*value > 0.0 && value.is_finite())) {
        Some((setting, value)) => Err(AttackError::setting(setting, value, "must be a positive number")),
        None => Ok(()),
    }
}

/// Fails, naming the first setting that is negative or no number.
pub(crate) fn none_negative(settings: impl IntoIterator<Item = (&'static str, f64)>) -> Result<(), AttackError> {
    match settings.into_iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
        Some((setting, value)) => Err(AttackError::setting(setting, value, "must be 0 or more")),
        None => Ok(()),
    }
}

/// A setting of an attack, as `afterimage explain` shows it.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its key.
    pub name: &'static str,
    /// Its value when nothing is said.
    pub default: &'static str,
    /// What it does.
    pub purpose: &'static str,
    /// What it may be.
    pub range: &'static str,
}

/// What a user should know of an attack before running it.
#[derive(Debug, Clone, Copy)]
pub struct Card {
    /// Its name on the command line and in plans.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What the attacker has and does, in plain words.
    pub attacker: &'static str,
    /// How it works, in a few sentences.
    pub method: &'static str,
    /// What must hold for it to work.
    pub needs: &'static str,
    /// What it cannot do.
    pub limits: &'static str,
    /// Where it was published.
    pub citation: &'static str,
    /// What would have stopped it.
    pub defences: &'static [&'static str],
    /// Its settings.
    pub parameters: &'static [Parameter],
}

/// A reconstruction method. The type's fields are its settings.
pub trait Attack {
    /// What it is.
    const CARD: Card;
    /// What it sees.
    type Sees: View;
    /// Fails, saying why and what would work, if the method cannot work on what is seen. Told before anything
    /// long is computed; what only shows on the way, [`reconstruct`](Self::reconstruct) says.
    fn applies(&self, _seen: &Self::Sees) -> Result<(), AttackError> {
        Ok(())
    }
    /// Rebuilds what it can.
    fn reconstruct(&self, seen: &Self::Sees, session: &mut Session<'_>) -> Result<Reconstruction, AttackError>;
}

/// The closed set of attacks: one line each.
macro_rules! attacks {
    ($($attack:ident),+ $(,)?) => {
        /// Any attack, chosen by `kind` in a plan.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum AnyAttack {
            $(#[doc = concat!("[`", stringify!($attack), "`]")] $attack($attack),)+
        }

        impl AnyAttack {
            /// Every attack at its default settings.
            pub fn all() -> Vec<AnyAttack> {
                vec![$(AnyAttack::$attack($attack::default())),+]
            }

            /// What the attack is.
            pub fn card(&self) -> Card {
                match self { $(AnyAttack::$attack(_) => $attack::CARD,)+ }
            }

            /// The kind of observation it needs.
            pub fn needs(&self) -> Kind {
                match self { $(AnyAttack::$attack(_) => <$attack as Attack>::Sees::KIND,)+ }
            }

            /// Fails, saying which kind is needed, if an observation is of another.
            pub fn fits(&self, observation: &Observation) -> Result<(), AttackError> {
                let (attack, needs, found) = (self.card().name, self.needs(), observation.kind());
                if needs == found { Ok(()) } else { Err(AttackError::WrongObservation { attack, needs, found }) }
            }

            /// Fails, saying why and what would work, if the attack cannot work on an observation.
            pub fn applies(&self, observation: &Observation) -> Result<(), AttackError> {
                match self { $(AnyAttack::$attack(attack) => attack.applies(seen::<$attack>(observation)?),)+ }
            }

            /// Runs the attack on an observation.
            pub fn run(
                &self,
                observation: &Observation,
                session: &mut Session<'_>,
            ) -> Result<Reconstruction, AttackError> {
                match self { $(AnyAttack::$attack(attack) => run(attack, observation, session),)+ }
            }
        }
    };
}

attacks!(
    Analytic,
    Exact,
    Tensor,
    Gradinversion,
    Labels,
    Kkt,
    Unmix,
    Kinks,
    Ntk,
    Autoencoder,
    ModelInversion,
    WeightRows,
    AeIterations,
    Inpaint
);

fn run<A: Attack>(
    attack: &A,
    observation: &Observation,
    session: &mut Session<'_>,
) -> Result<Reconstruction, AttackError> {
    let seen = seen::<A>(observation)?;
    attack.applies(seen)?;
    attack.reconstruct(seen, session)
}

/// What an attack sees of an observation.
fn seen<A: Attack>(observation: &Observation) -> Result<&A::Sees, AttackError> {
    A::Sees::of(observation).ok_or(AttackError::WrongObservation {
        attack: A::CARD.name,
        needs: A::Sees::KIND,
        found: observation.kind(),
    })
}
