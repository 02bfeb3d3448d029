"""Settings for property tests."""

from hypothesis import HealthCheck, settings


def without_health_checks(max_examples: int) -> settings:
    """Return settings that accept slow and heavily filtered strategies."""
    checks = [check for check in HealthCheck if isinstance(check, HealthCheck)]
    return settings(max_examples=max_examples, suppress_health_check=checks)
