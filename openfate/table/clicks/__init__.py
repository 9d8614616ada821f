"""Click logs, raw or synthetic, to shards of feature ids: larger than memory, in time order."""
