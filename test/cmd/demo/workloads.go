package main

import (
	"fmt"
	"strings"
)

// namespace has Deployments of the demo.
type namespace struct {
	name        string
	deployments []deployment
}

type deployment struct {
	name       string
	replicas   int
	containers []string
}

var namespaces = []namespace{
	{"shop", []deployment{
		{"frontend", 30, []string{"nginx"}},
		{"cart", 20, []string{"app", "proxy"}},
		{"checkout", 20, []string{"app", "proxy"}},
		{"web", 1, []string{"web"}},
	}},
	{"media", []deployment{
		{"transcode", 40, []string{"worker"}},
		{"thumbnails", 20, []string{"worker"}},
	}},
	{"data", []deployment{
		{"queue", 9, []string{"broker", "exporter"}},
		{"ingest", 30, []string{"ingest"}},
		{"search", 30, []string{"search", "exporter"}},
	}},
}

// podCount returns the number of pods before the autoscaler changes it.
func podCount() (count int) {
	for _, n := range namespaces {
		for _, d := range n.deployments {
			count += d.replicas
		}
	}
	return count
}

// autoscaler scales the Deployment web in namespace shop.
const autoscaler = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 12
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}
`

// manifest returns all objects except the namespaces.
func manifest() string {
	var b strings.Builder
	for _, n := range namespaces {
		for _, d := range n.deployments {
			fmt.Fprintf(&b, `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
`, d.name, n.name, d.replicas)
			for _, c := range d.containers {
				fmt.Fprintf(&b, "        - {name: %s, image: simulated, resources: {requests: {cpu: 200m, memory: 64Mi}}}\n", c)
			}
			b.WriteString("---\n")
		}
	}
	b.WriteString(autoscaler)
	return b.String()
}
