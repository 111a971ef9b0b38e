package kubelet

import "errors"

var (
	errNoSamples        = errors.New("no sample of a node or container")
	errContainersUnread = errors.New("resource_scrape_error is not 0")
)
