// Package kubelet is the client of kubelets. It finds the address of a node's kubelet, verifies its
// certificate, sends one bounded GET, and decodes the response into a usage.Scrape.
//
// A Client serves all nodes:
//
//	client, err := kubelet.NewClient(config)
//	...
//	timing, err := client.Fetch(ctx, node, func(s *usage.Scrape) { store.Put(node.Name, s) })
//
// A request has bounded time and memory, whatever the kubelet sends. An error names its cause,
// and reason.Of returns its reason. Invalid parts of a response are skipped and counted.
//
// The caller decides when to send requests. The package does not log, keep metrics, or retry,
// unless the kubelet had closed an idle connection.
package kubelet
