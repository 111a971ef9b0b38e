package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"
)

var clientChecks = []Check{
	{"client/hpa-read", Required, "the client of the HPA lists pods by label selector, as protobuf", autoscaler, workload,
		checkHPARead},
	{"client/hpa-status", Required, "an HPA object gets the current utilization of its Deployment", autoscaler, workload,
		checkHPAStatus},
	{"client/kubectl-top", Required, "kubectl top shows nodes, pods and containers", kubectlTop, nothing, checkKubectlTop},
}

// checkHPARead reads what the HorizontalPodAutoscaler's controller reads, with its client.
func checkHPARead(ctx context.Context, e *env) error {
	config := rest.CopyConfig(e.cfg.REST)
	config.ContentType = typeProtobuf
	client, err := metrics.NewForConfig(config)
	if err != nil {
		return err
	}
	selector := roleLabel + "=" + deployment
	return e.eventually(ctx, func(ctx context.Context) error {
		got, err := client.MetricsV1beta1().PodMetricses(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		pods, err := e.client.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		request := "PodMetricses of " + e.namespace + " with " + selector
		if len(got.Items) != len(pods.Items) || len(pods.Items) == 0 {
			return mismatch(request, fmt.Sprintf("metrics of %d pods", max(1, len(pods.Items))), len(got.Items))
		}
		for i := range got.Items {
			for _, c := range got.Items[i].Containers {
				if cpu, ok := c.Usage[corev1.ResourceCPU]; !ok || c.Name != busy {
					return mismatch(request, "container "+busy+" with cpu", fmt.Sprintf("container %s with %v", c.Name, &cpu))
				}
			}
		}
		return nil
	})
}

func checkHPAStatus(ctx context.Context, e *env) error {
	observed := false
	err := e.eventually(ctx, func(ctx context.Context) error {
		hpa, err := e.client.AutoscalingV2().HorizontalPodAutoscalers(e.namespace).Get(ctx, deployment, metav1.GetOptions{})
		if err != nil {
			return err
		}
		observed = observed || len(hpa.Status.Conditions) > 0
		for _, m := range hpa.Status.CurrentMetrics {
			if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
				m.Resource.Current.AverageUtilization != nil {
				return nil
			}
		}
		var conditions []string
		for _, c := range hpa.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Message))
		}
		return mismatch("HPA "+e.namespace+"/"+deployment, "currentMetrics with the utilization of cpu",
			strings.Join(conditions, "; "))
	})
	if err != nil && !observed {
		return skip("no controller has handled the HPA object")
	}
	return err
}

func checkKubectlTop(ctx context.Context, e *env) error {
	if e.cfg.Kubectl == "" {
		return skip("there is no kubectl")
	}
	_, ready, err := e.readyNodes(ctx)
	if err != nil {
		return err
	}
	for name := range ready {
		if err := e.kubectl(ctx, name, "top", "nodes"); err != nil {
			return err
		}
	}
	if e.namespace == "" {
		return e.kubectl(ctx, "", "top", "pods", "--all-namespaces")
	}
	if err := e.kubectl(ctx, loadPod, "top", "pods", "--namespace", e.namespace); err != nil {
		return err
	}
	return e.kubectl(ctx, busy, "top", "pod", loadPod, "--namespace", e.namespace, "--containers")
}

// kubectl runs kubectl until its output has a word.
func (e *env) kubectl(ctx context.Context, want string, args ...string) error {
	return e.eventually(ctx, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, e.cfg.Kubectl, args...)
		cmd.Env = os.Environ()
		if e.cfg.Kubeconfig != "" {
			cmd.Env = append(cmd.Env, "KUBECONFIG="+e.cfg.Kubeconfig)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return mismatch("kubectl "+strings.Join(args, " "), "success", fmt.Sprintf("%v: %s", err, abbreviate(out)))
		}
		for word := range strings.FieldsSeq(string(out)) {
			if word == want || want == "" {
				return nil
			}
		}
		return mismatch("kubectl "+strings.Join(args, " "), want, abbreviate(out))
	})
}
