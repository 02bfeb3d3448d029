"""The table of torch releases: a run adds or replaces its row."""

from pathlib import Path

from torch_releases import PAGE, row, with_row

REPORT = """<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="20"/>
</testsuites>"""


def test_row_has_passed_failed_and_skipped_counts(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert row(report, "2.12.1").startswith("| 2.12.1 | 14 | 3 | 3 |")


def test_rows_are_sorted_by_release_without_duplicates() -> None:
    page = PAGE.read_text("utf-8")
    added = with_row(page, "| 2.9.0 | 1 | 0 | 0 | then |")
    again = with_row(added, "| 2.9.0 | 2 | 0 | 0 | later |")
    rows = [line for line in again.splitlines() if line.startswith("| 2.")]
    assert rows[0] == "| 2.9.0 | 2 | 0 | 0 | later |"
    assert len(rows) == 1 + sum(line.startswith("| 2.") for line in page.splitlines())
    assert [line for line in again.splitlines() if line not in rows] == [
        line for line in page.splitlines() if not line.startswith("| 2.")
    ]
