"""From records to curves, indices, figures and a report. Modules of plain functions on DataFrames and models."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis import figures as figures
    from mnemolab.analysis import interference as interference
    from mnemolab.analysis import oracle as oracle
    from mnemolab.analysis import report as report
    from mnemolab.analysis import retention as retention
    from mnemolab.analysis import statistics as statistics
    from mnemolab.analysis.figures import FIGURES as FIGURES
    from mnemolab.analysis.figures import register_figure as register_figure
    from mnemolab.analysis.probes import PROBES as PROBES
    from mnemolab.analysis.probes import register_probe as register_probe
    from mnemolab.analysis.records import Depth as Depth
    from mnemolab.analysis.records import Study as Study
    from mnemolab.analysis.records import load_metrics as load_metrics
    from mnemolab.analysis.records import load_records as load_records
    from mnemolab.analysis.records import load_runs as load_runs

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Depth": "records",
        "FIGURES": "figures",
        "PROBES": "probes",
        "Study": "records",
        "figures": "figures",
        "interference": "interference",
        "load_metrics": "records",
        "load_records": "records",
        "load_runs": "records",
        "oracle": "oracle",
        "register_figure": "figures",
        "register_probe": "probes",
        "report": "report",
        "retention": "retention",
        "statistics": "statistics",
    },
)
