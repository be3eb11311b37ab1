"""A model of one inference engine: what it costs (`model`), what it is given (`jobs`), and how it batches (`batching`)."""
