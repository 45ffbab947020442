"""Groups, joins and sorts a table of three million rows, as often as told: frames.py polars|duckdb TIMES."""

import sys

ROWS = 3_000_000


def polars():
    import polars

    rows = polars.select(key=polars.int_range(ROWS) * 7919 % 100_003, value=polars.int_range(ROWS) * 31 % 1009)
    sums = rows.group_by("key").agg(polars.col("value").sum().alias("sum"))
    rows.join(sums, on="key").with_columns(part=polars.col("value") / polars.col("sum")).sort("part")


def duckdb():
    import duckdb

    duckdb.sql(f"""
        CREATE OR REPLACE TABLE rows AS SELECT range * 7919 % 100003 AS key, range * 31 % 1009 AS value FROM range({ROWS});
        CREATE OR REPLACE TABLE parts AS SELECT key, value / sum(value) OVER (PARTITION BY key) AS part FROM rows ORDER BY part;
    """)


for _ in range(int(sys.argv[2])):
    {"polars": polars, "duckdb": duckdb}[sys.argv[1]]()
