package usage

// ContainerState is what the API server shows of a container on a node. It is zero if the pod is not bound to the node.
type ContainerState struct {
	// Accepted is whether the node's kubelet has accepted the pod: before, samples are of another pod of its name.
	Accepted      bool
	Running       bool     // not set if the container has no status, as debug containers
	Alive         bool     // whether it runs, or waits to be restarted
	StartedAt     NodeTime // in whole seconds, if it runs; 0: not known
	EarliestStart NodeTime // in whole seconds, it cannot have started before; 0: not known
	PodCreatedAt  Time     // in whole seconds, by the API server's clock, which is assumed to agree with ours
}
