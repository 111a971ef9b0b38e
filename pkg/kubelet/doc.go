// Package kubelet asks one kubelet what its node and containers use: where it is (address, port and
// path), how to trust it, one bounded GET, and Decode, which turns the text of the answer into a
// usage.Scrape.
//
// A Client serves all nodes. Fetch is nearly the whole of it; FetchSummary does the same for the
// kubelet's summary, which has its own rates:
//
//	client, err := kubelet.NewClient(kubelet.Config{CertificateAuthority: "/etc/kubelet-ca.crt"})
//	...
//	err = client.Fetch(ctx, node, &scrape)
//
// Whatever a kubelet sends costs a bounded amount of time and memory. What cannot be had is an
// error that says what to do about it, and that Reason puts into one of a few classes. What cannot
// be read within an answer is skipped and counted.
//
// The package decides neither when nor how often a kubelet is asked, does not retry, keeps no
// figures and does not log.
package kubelet
