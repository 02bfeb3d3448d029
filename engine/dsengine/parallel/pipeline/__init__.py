"""Pipeline parallelism: layers divided into stages, which run one list of events each."""
