"""Claims about memory, judged: claims as data, one set of rules, experiments from YAML, verdicts with their evidence.

Importing this costs no torch: `CLAIMS` maps an id to a `Claim`; `judge`, `experiments` and `train` are imported when used.
"""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.claims import page as page
    from mnemolab.analysis.claims.catalogue import CLAIMS as CLAIMS
    from mnemolab.analysis.claims.catalogue import register_claim as register_claim
    from mnemolab.analysis.claims.claim import Claim as Claim
    from mnemolab.analysis.claims.claim import Contrast as Contrast
    from mnemolab.analysis.claims.claim import Judgement as Judgement
    from mnemolab.analysis.claims.claim import Sample as Sample
    from mnemolab.analysis.claims.claim import Verdict as Verdict
    from mnemolab.analysis.claims.evidence import Evidence as Evidence
    from mnemolab.analysis.claims.experiments import Experiment as Experiment
    from mnemolab.analysis.claims.experiments import load_experiment as load_experiment
    from mnemolab.analysis.claims.judge import judge_claim as judge_claim
    from mnemolab.analysis.claims.judge import judge_claims as judge_claims

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CLAIMS": "catalogue",
        "Claim": "claim",
        "Contrast": "claim",
        "Evidence": "evidence",
        "Experiment": "experiments",
        "Judgement": "claim",
        "Sample": "claim",
        "Verdict": "claim",
        "judge_claim": "judge",
        "judge_claims": "judge",
        "load_experiment": "experiments",
        "page": "page",
        "register_claim": "catalogue",
    },
)
