package decode

// subject is what the samples of a metric are about.
type subject uint8

const (
	subjectIgnored     subject = iota // a metric that is not used
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
	fieldOldScrapeError // the deprecated name of the same metric; responses of kubelet 1.29 have both
)

// metric is what the name of a metric says about its samples.
type metric struct {
	subject subject
	field   fieldSet
}

// metrics are the metrics that are used, by name.
var metrics = map[string]metric{
	"container_cpu_usage_seconds_total":  {subjectContainer, fieldCPU},
	"container_memory_working_set_bytes": {subjectContainer, fieldMemory},
	"container_start_time_seconds":       {subjectContainer, fieldStart},
	"container_swap_usage_bytes":         {subjectContainer, fieldSwap},
	"node_cpu_usage_seconds_total":       {subjectNode, fieldCPU},
	"node_memory_working_set_bytes":      {subjectNode, fieldMemory},
	"node_swap_usage_bytes":              {subjectNode, fieldSwap},
	"resource_scrape_error":              {subjectScrapeError, fieldScrapeError},
	"scrape_error":                       {subjectScrapeError, fieldOldScrapeError},
}
