// Package engine reads the usage of nodes and containers from an engine with Prometheus' HTTP
// API: Prometheus, Thanos, Mimir or VictoriaMetrics. The engine scrapes the kubelets; this package
// sends a constant number of queries in each interval, whatever the number of nodes and pods.
//
// The queries return raw samples of the CPU counters with the timestamps that the engine stored
// (range selectors in instant queries), so that the store applies the same rules to them as to
// samples that kube-vitals has scraped itself. The client sends queries and decodes the responses while
// they arrive. Source groups the samples by node, selects one of several series of the same
// container, and puts new samples into the store in the order of their times.
//
// An engine returns the samples of ended containers for as long as the range of a query, and may
// not have all samples. So the API server decides which pods and containers exist, and the engine
// what they use. docs/prometheus.md explains this source to users.
package engine
