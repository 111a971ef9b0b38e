package doctor

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
	"github.com/kube-vitals/kube-vitals/pkg/internal/command/commandtest"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// hostileWorlds put a text that others choose wherever it can reach the output.
func hostileWorlds() map[string]func(w *world, text string) {
	crashing := func(text string) corev1.Pod {
		pod := serverPod(false, corev1.ContainerStatus{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: text}}})
		pod.Status.ContainerStatuses[0].Name = text
		pod.Namespace, pod.Name = text, text
		return pod
	}
	return map[string]func(w *world, text string){
		"version": func(w *world, text string) { w.objects["/version"] = map[string]string{"gitVersion": text} },
		"denied": func(w *world, text string) {
			w.status[aggregation], w.status[hpas] = forbidden(text), forbidden(text)
		},
		"APIService": func(w *world, text string) {
			w.spec("v1beta1")["service"].(map[string]any)["name"] = text
			w.spec("v1")["service"].(map[string]any)["name"] = "kube-vitals" + text
			w.spec("v1")["service"].(map[string]any)["namespace"] = text
		},
		"candidates": func(w *world, text string) {
			w.spec("v1beta1")["service"].(map[string]any)["name"] = text
			w.spec("v1")["service"].(map[string]any)["name"] = text
			w.candidates(strings.ReplaceAll(text, "/", "") + "/" + text)
		},
		"condition": func(w *world, text string) {
			w.objects[apiservices+"v1beta1.metrics.k8s.io"].(map[string]any)["status"] = map[string]any{"conditions": []any{
				map[string]any{"type": "Available", "status": "False", "reason": text, "message": text}}}
		},
		"Deployment": func(w *world, text string) {
			w.inCluster(0)
			o := &w.objects[deployments].(*appsv1.DeploymentList).Items[0]
			o.Namespace, o.Name = text, text
			o.Spec.Template.Spec.Containers[0].Image = text
			o.Spec.Template.Spec.Containers[0].Args = []string{"--kubelet-service-account=" + text}
		},
		"pod": func(w *world, text string) { w.inCluster(1, crashing(text)) },
		"image": func(w *world, text string) {
			w.inCluster(1, serverPod(false, corev1.ContainerStatus{Image: text, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: text + "Image", Message: text}}}))
		},
		"metrics API": func(w *world, text string) {
			w.status[metricsV1b1+"nodes"] = metav1.Status{Code: http.StatusServiceUnavailable, Message: text}
		},
		"page of nodes": func(w *world, text string) {
			n := &w.page.Nodes[1]
			n.Name, n.State, n.Reason, n.Problem, n.Cure, n.URL, n.Error = text, nodez.Failing, reason.Reason(text), text,
				text, text, text
			w.page.DeviceExporters = []nodez.DeviceExporter{{Name: text, Namespace: text, PodSelector: text,
				Pods: []nodez.DevicePod{{Node: text, State: nodez.Failing,
					Diagnosis: nodez.Diagnosis{Reason: reason.Timeout, Error: text}}}}}
		},
		"command of the page": func(w *world, text string) {
			n := &w.page.Nodes[1]
			n.State, n.Reason, n.Command, n.Error = nodez.Failing, reason.TLSKeyChanged, text, text
		},
		"engine": func(w *world, text string) {
			w.page.Engine = &nodez.Engine{Host: text, State: nodez.Failing,
				Diagnosis: nodez.Diagnosis{Reason: reason.Reason(text), Error: text, Cure: text}}
		},
		"nodes without the page": func(w *world, text string) {
			w.page = nil
			w.objects["/api/v1/nodes"] = &corev1.NodeList{Items: []corev1.Node{node(text, true), node(text, false)}}
		},
		"autoscaler": func(w *world, text string) {
			list := autoscaler(text)
			list.Items[0].Namespace, list.Items[0].Name = text, text
			w.objects[hpas] = list
		},
	}
}

// TestHostileText checks that no text that others choose is a part of a printed command, and that none
// controls the terminal.
func TestHostileText(t *testing.T) {
	for name, prepare := range hostileWorlds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, text := range commandtest.Hostile() {
				prepare(w, text)
				report, output := w.examine(t)
				var encoded bytes.Buffer
				if err := terminal.WriteJSON(&encoded, report); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(encoded.Bytes(), &Report{}); err != nil {
					t.Errorf("%.50q: the JSON cannot be read back: %v", text, err)
				}
				for _, c := range report.Checks {
					if unsafe := commandtest.Unsafe(c.Cure); unsafe != nil {
						t.Errorf("%.50q: got commands %q", text, unsafe)
					}
				}
				isControl := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
				if i := strings.IndexFunc(output+encoded.String(), isControl); i >= 0 {
					t.Errorf("%.50q: the output has a control character at %d", text, i)
				}
			}
		})
	}
}

// TestLongText checks that a long name or message does not hide the rest of the output.
func TestLongText(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out}
	long := strings.Repeat("x", 10<<10)
	p.Done(Check{Title: "pods", Status: Failed, Seen: long, Objects: []string{long, "n1", "a, b"}})
	if got := out.String(); len(got) > 2000 || !strings.Contains(got, "n1, \"a, b\"") {
		t.Errorf("got %d bytes: %s", len(got), got)
	}
}

// TestForgedCures has a kubelet send a text with a cure of its own, and with each number of characters before it, so
// that it begins a line. It must not look like doctor's: neither its symbols nor a command at the column of commands.
func TestForgedCures(t *testing.T) {
	const command, indent = "kubectl delete namespace kube-system", titleWidth + 3
	for _, symbol := range []string{
		"→ ", "\n→ ", "\u2028  ", "⇒ ", "➜ ", "> ", "- ", "x ", "✗ ", "✓ ", "\u3164\u2800", "\u115f", "",
	} {
		for before := range 2 * textWidth {
			var out bytes.Buffer
			p := &Printer{Out: &out}
			text := strings.Repeat("x", before) + " " + symbol + command
			p.Done(Check{Title: "nodes", Status: Failed, Seen: text, Cure: "see\nkubectl get nodes", URL: "u",
				Objects: []string{text}})
			symbols := 0
			for line := range strings.Lines(out.String()) {
				symbols += strings.Count(line, "→") + strings.Count(line, "✗")
				at := utf8.RuneCountInString(line[:max(0, strings.Index(line, "kubectl delete"))])
				if at > 0 && (at < indent+len(detail)) && before >= textWidth {
					t.Fatalf("%q after %d characters: a command is at column %d:\n%s", symbol, before, at, &out)
				}
			}
			if symbols != 2 || strings.ContainsAny(out.String(), "⇒➜✓\u2800\u3164\u115f") {
				t.Fatalf("%q after %d characters: the text has symbols of others:\n%s", symbol, before, &out)
			}
		}
	}
}
