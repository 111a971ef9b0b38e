package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// otherFlags are flags of other programs that documents name: kubectl, helm, kubelets, exporters,
// metrics-server and prometheus-adapter.
const otherFlags = " collect-interval disable disable-components disable-metrics dry-run" +
	" enable-aggregator-routing event-ttl extra-config force force-conflicts kubernetes" +
	" kubernetes-enable-dra kubernetes-virtual-gpus node-ip preserve prometheus-auth-config" +
	" prometheus-auth-incluster prometheus-ca-file prometheus-client-tls-cert-file prometheus-client-tls-key-file" +
	" prometheus-header prometheus-token-file prometheus-verb query.max-samples reset-then-reuse-values" +
	" reuse-values server-side set show-only skip-tests sort-by take-ownership token values" +
	" alsologtostderr logtostderr stderrthreshold "

// otherValues look like values of the chart but are not: keys of Secrets, fields of the configuration
// of devices, and values of the charts of metrics-server.
const otherValues = " tls.crt tls.key tls.caFile tls.serverName rbac.pspEnabled image.registry image.pullSecrets" +
	" service.ports.https service.targetPort service.metrics tls.args podDisruptionBudget.apiVersion source.helm "

// TestNamesExist checks that the flags, values, metrics, reasons, files, make targets and benchmarks
// that documents name exist. A name of another program belongs into the lists above.
func TestNamesExist(t *testing.T) {
	suite := helpOf(t, filepath.Join(root, "test", "conformance"), "./metrics-conformance", "-help")
	flags := help(t) + helpOf(t, root, "./cmd/kubectl-vitals", "doctor", "--help") +
		helpOf(t, root, "./cmd/kubectl-vitals", "top", "--help") +
		strings.ReplaceAll(suite, "  -", "  --")
	makefile, chart := read(t, "Makefile"), read(t, "charts/kube-vitals/README.md")
	metrics, reasons := read(t, "docs/metrics.md"), read(t, "pkg/reason/reason.go")
	benchmarks := sources(t)
	value := regexp.MustCompile(`(?m)^\| ([\w.]+) \| (\w+) \|`).FindAllStringSubmatch(chart, -1)
	isValue := func(name string) bool {
		return slices.ContainsFunc(value, func(v []string) bool {
			isInside := strings.HasPrefix(name, v[1]+".") && (v[2] == "object" || v[2] == "list")
			return v[1] == name || strings.HasPrefix(v[1], name+".") || isInside
		})
	}
	isOfChart := func(name string) bool { // its first part is a value or a group of values
		top, _, _ := strings.Cut(name, ".")
		return isValue(top)
	}
	kinds := []struct {
		name   string
		expr   string // the first group is the name
		exists func(name string) bool
	}{
		{"flag", "`--([a-z0-9][\\w.-]*\\w)[ =`]", func(name string) bool {
			return regexp.MustCompile(`(?m)^ +(?:-\w, )?--`+name+`\b`).MatchString(flags) ||
				strings.Contains(otherFlags, " "+name+" ")
		}},
		{"chart value", "(?:`|--set[ =]'?)([a-zA-Z]+(?:\\.[a-zA-Z]+)+)(?:[=:][^`]*)?[` =]", func(name string) bool {
			return !isOfChart(name) || isValue(name) || strings.Contains(otherValues, " "+name+" ")
		}},
		{"metric", `\b(kube_vitals_\w+)`, func(name string) bool {
			name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			return strings.Contains(metrics, "`"+name+"`") ||
				strings.HasSuffix(name, "_") && strings.Contains(metrics, "`"+name)
		}},
		{"reason", "reasons?\\s+\\[?`([a-z-]+)`", func(name string) bool {
			return strings.Contains(reasons, `Reason = "`+name+`"`)
		}},
		{"file", "`((?:charts|cmd|docs|internal|manifests|pkg|test)/[^`\\s…]*)`", func(name string) bool {
			found, err := filepath.Glob(filepath.Join(root, name))
			return err == nil && len(found) > 0
		}},
		{"make target", "(?m)(?:`|^)make ([a-z][\\w-]*)(?:`| +[A-Z_]+=| +#|$)", func(name string) bool {
			return strings.Contains(makefile, "\n"+name+":")
		}},
		{"benchmark", `\b(Benchmark[A-Z]\w*)`, func(name string) bool {
			return strings.Contains(benchmarks, "func "+name+"(")
		}},
	}
	for _, kind := range kinds {
		expr, found := regexp.MustCompile(kind.expr), 0
		for _, file := range documents(t) {
			if filepath.Base(file) == "CHANGELOG.md" { // it names what is gone
				continue
			}
			page := readFile(t, file)
			for _, m := range expr.FindAllStringSubmatch(page, -1) {
				found++
				if !kind.exists(m[1]) {
					t.Errorf("%s names the %s %s, which does not exist", file, kind.name, m[1])
				}
			}
		}
		if found == 0 {
			t.Errorf("no document names a %s", kind.name)
		}
	}
}

// read returns the text of a file of the repository.
func read(t *testing.T, file string) string {
	t.Helper()
	return readFile(t, filepath.Join(root, file))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// helpOf returns what a program of the module in dir prints. The exit status of -help is not 0.
func helpOf(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), "go", append([]string{"run", "-buildvcs=false", program}, args...)...)
	run.Dir, run.Env = dir, append(os.Environ(), "CGO_ENABLED=0") // as make bench
	text, err := run.CombinedOutput()
	if !strings.Contains(string(text), "kubeconfig") {
		t.Fatalf("%s: %v:\n%s", program, err, text)
	}
	return string(text)
}
