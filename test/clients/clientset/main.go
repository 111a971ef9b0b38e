// Command clientset prints, as JSON, the metrics of the nodes and of the pods in a namespace that
// label selectors select. It reads them with the clientset of k8s.io/metrics in the given content
// type. It is built with old versions of that module.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"
)

func main() {
	const arguments = 5
	if len(os.Args) != arguments {
		fmt.Fprintln(os.Stderr, "usage: clientset CONTENT-TYPE NODE-SELECTOR NAMESPACE POD-SELECTOR")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "clientset:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, contentType, nodeSelector, namespace, podSelector string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.ContentType = contentType
	client, err := metrics.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes, err := client.MetricsV1beta1().NodeMetricses().List(ctx, metav1.ListOptions{LabelSelector: nodeSelector})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.MetricsV1beta1().PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: podSelector})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items { // a GET, in place of the item of the list
		pod, err := client.MetricsV1beta1().PodMetricses(namespace).Get(ctx, pods.Items[i].Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get a pod: %w", err)
		}
		pods.Items[i] = *pod
	}
	return json.NewEncoder(os.Stdout).Encode(struct {
		Nodes []v1beta1.NodeMetrics `json:"nodes"`
		Pods  []v1beta1.PodMetrics  `json:"pods"`
	}{nodes.Items, pods.Items})
}
