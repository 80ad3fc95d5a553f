"""From records to curves, indices, figures and a report. Modules of plain functions on DataFrames."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis import figures as figures
    from mnemolab.analysis import interference as interference
    from mnemolab.analysis import retention as retention
    from mnemolab.analysis import statistics as statistics
    from mnemolab.analysis.records import load_records as load_records

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "load_records": "records",
        "retention": "retention",
        "interference": "interference",
        "statistics": "statistics",
        "figures": "figures",
    },
)
