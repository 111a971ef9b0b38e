package decode

// subject is what the series of a family are about.
type subject uint8

const (
	aboutNothing   subject = iota // the line has no name
	aboutOther                    // nothing of ours
	aboutScrape                   // whether the kubelet could read its containers
	aboutNode                     // the node
	aboutContainer                // a container
)

// reading is a set of bits: what a line says of its subject.
type reading uint8

const (
	cpuReading reading = 1 << iota
	memoryReading
	swapReading
	startReading
	outcomeReading       // by its present name
	formerOutcomeReading // by its former name, which goes away
)

// family is a set of series of one name.
type family struct {
	about subject
	gives reading
}

// familyOf tells what the series of a name are about.
func familyOf(name []byte) family {
	switch string(name) {
	case "":
		return family{about: aboutNothing}
	case "container_cpu_usage_seconds_total":
		return family{aboutContainer, cpuReading}
	case "container_memory_working_set_bytes":
		return family{aboutContainer, memoryReading}
	case "container_start_time_seconds":
		return family{aboutContainer, startReading}
	case "container_swap_usage_bytes":
		return family{aboutContainer, swapReading}
	case "node_cpu_usage_seconds_total":
		return family{aboutNode, cpuReading}
	case "node_memory_working_set_bytes":
		return family{aboutNode, memoryReading}
	case "node_swap_usage_bytes":
		return family{aboutNode, swapReading}
	case "resource_scrape_error":
		return family{aboutScrape, outcomeReading}
	case "scrape_error":
		return family{aboutScrape, formerOutcomeReading}
	}
	return family{about: aboutOther}
}
