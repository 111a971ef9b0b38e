package decode

// subject is what the samples of a metric are about.
type subject uint8

const (
	subjectMissing     subject = iota // the line has no metric name
	subjectIgnored                    // a metric that is not used
	subjectScrapeError                // whether the kubelet could read its containers
	subjectNode
	subjectContainer
)

// fieldSet is a set of bits, one for each value that a metric can set.
type fieldSet uint8

const (
	fieldCPU fieldSet = 1 << iota
	fieldMemory
	fieldSwap
	fieldStart
	fieldScrapeError
	fieldOldScrapeError // the deprecated name of the same metric; responses have both
)

// metric is what the name of a metric says about its samples.
type metric struct {
	subject subject
	field   fieldSet
}

func metricByName(name []byte) metric {
	switch string(name) {
	case "":
		return metric{}
	case "container_cpu_usage_seconds_total":
		return metric{subjectContainer, fieldCPU}
	case "container_memory_working_set_bytes":
		return metric{subjectContainer, fieldMemory}
	case "container_start_time_seconds":
		return metric{subjectContainer, fieldStart}
	case "container_swap_usage_bytes":
		return metric{subjectContainer, fieldSwap}
	case "node_cpu_usage_seconds_total":
		return metric{subjectNode, fieldCPU}
	case "node_memory_working_set_bytes":
		return metric{subjectNode, fieldMemory}
	case "node_swap_usage_bytes":
		return metric{subjectNode, fieldSwap}
	case "resource_scrape_error":
		return metric{subjectScrapeError, fieldScrapeError}
	case "scrape_error":
		return metric{subjectScrapeError, fieldOldScrapeError}
	}
	return metric{subject: subjectIgnored}
}
