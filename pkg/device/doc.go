// Package device reads the usage of devices, such as GPUs, from the exporters that run on the nodes,
// for example NVIDIA's dcgm-exporter. It puts the values of containers into the Sink, from where
// they are served as further resources of the Resource Metrics API.
//
// A configuration file (file.go) describes each kind of exporter: how to find its pods, and which
// series is which resource. A watch (pods.go) follows the exporters' pods. Each pod is scraped on a
// schedule of its own (source.go), independent of all others and of the scrapes of kubelets. Only
// the configured series are decoded (decode.go), and only values of containers of pods that the API
// server has bound to the exporter's node are kept.
//
// An exporter is not trusted: the size of its response, the number of series, and the time that it
// may take are limited, it gets no credentials, and redirects are not followed.
package device
