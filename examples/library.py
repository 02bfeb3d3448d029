"""The library in one page: read, validate, resolve, estimate, plan, and train with the plan."""

from pathlib import Path

import dsconfig

HERE = Path(__file__).parent


def main() -> dsconfig.Plan:
    document = dsconfig.read(HERE / "baichuan2.json")
    facts = dsconfig.Facts(
        world_size=8,
        nodes=1,
        device=dsconfig.DeviceFacts(name="A100 80GB", memory_bytes=80 * 2**30),
        model=dsconfig.ModelTree(
            name="13B", parameters=13_000_000_000, trainable=13_000_000_000, hidden_size=5120
        ),
        training=dsconfig.TrainingFacts(micro_batch_size=1, global_batch_size=64),
    )

    report = dsconfig.validate(document, facts, runtime="dsengine")
    print(f"valid: {report.ok}, {len(report.diagnostics)} findings")

    resolution = dsconfig.resolve(document, facts)
    for entry in resolution.ledger[:3]:
        print(f"{entry.pointer} = {entry.value}: {entry.rule}")

    estimate = dsconfig.estimate(resolution, facts)
    option = estimate.options[0]
    print(f"peak {option.device.peak_bytes / 2**30:.2f} GiB per GPU in {option.device.peak_phase}")

    plan = dsconfig.plan(resolution, facts)
    print(f"{len(plan.coverage)} keys covered, batch {plan.batch.global_batch}")
    return plan


if __name__ == "__main__":
    main()
