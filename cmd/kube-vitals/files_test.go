package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certutil "k8s.io/client-go/util/cert"
)

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// writeFiles writes valid and invalid files to a new directory, and returns it.
func writeFiles(t *testing.T) string {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("a", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, otherKey, err := certutil.GenerateSelfSignedCertKey("b", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"crt":             string(certificate),
		"key":             string(key),
		"other-key":       string(otherKey),
		"mislabeled-key":  strings.ReplaceAll(string(key), "RSA PRIVATE KEY", "EC PRIVATE KEY"), // as some tools do
		"empty":           "",
		"text":            "hello",
		"tabs":            "a:\n\t- b",
		"kubeconfig":      kubeconfig,
		"no-context":      strings.ReplaceAll(kubeconfig, "current-context: x", ""),
		"other-context":   strings.ReplaceAll(kubeconfig, "current-context: x", "current-context: z"),
		"other-kind":      "apiVersion: v1\nkind: Pod\n",
		"no-clusters":     "apiVersion: v1\nkind: Config\n",
		"clusters-number": "apiVersion: v1\nkind: Config\nclusters: 5\n",
		"kubeconfig-ca":   strings.ReplaceAll(kubeconfig, "cluster: {", "cluster: {certificate-authority: no-ca, "),
		"policy":          "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
		"policy-rules":    "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
		"engine":          "preset: x\ntimeout: 2h\n",
		"devices":         "exporters: [{preset: x, interval: 1s}]\n",
		"policy-level":    "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFileErrors checks that there is one error for each invalid file, with its flag.
func TestFileErrors(t *testing.T) {
	dir := writeFiles(t)
	for args, want := range map[string][]string{
		"":                        nil,
		"--kubeconfig=kubeconfig": nil,
		"--kubeconfig=kubeconfig --authentication-kubeconfig=kubeconfig --authorization-kubeconfig=kubeconfig": nil,
		"--kubelet-certificate-authority=crt --client-ca-file=crt --requestheader-client-ca-file=crt":          nil,
		"--tls-cert-file=crt --tls-private-key-file=key --tls-sni-cert-key=crt,key":                            nil,
		"--kubelet-client-certificate=crt --kubelet-client-key=key --audit-policy-file=policy":                 nil,
		"--kubelet-client-certificate=crt --kubelet-client-key=mislabeled-key":                                 nil,
		"--audit-webhook-config-file=kubeconfig":                                                               nil,

		"--kubeconfig=no": {"--kubeconfig: open DIR/no: no such file or directory"},
		"--kubeconfig=.":  {"--kubeconfig: read DIR: is a directory"},
		"--kubeconfig=text": {
			"--kubeconfig: DIR/text: the file is not a kubeconfig file: it has no fields"},
		"--kubeconfig=tabs":       {"--kubeconfig: DIR/tabs: the file is neither YAML nor JSON: "},
		"--kubeconfig=other-kind": {"--kubeconfig: DIR/other-kind: the file is not a kubeconfig file: "},
		"--kubeconfig=no-clusters": {
			"--kubeconfig: DIR/no-clusters: the file has no current-context"},
		"--kubeconfig=clusters-number": {
			"--kubeconfig: DIR/clusters-number: the file is not a kubeconfig file: Config.clusters cannot be a number"},
		"--kubeconfig=no-context":            {"--kubeconfig: DIR/no-context: the file has no current-context"},
		"--kubeconfig=other-context":         {"--kubeconfig: DIR/other-context: invalid configuration: [context was"},
		"--kubeconfig=kubeconfig-ca":         {"--kubeconfig: DIR/kubeconfig-ca: ", "DIR/no-ca"},
		"--authentication-kubeconfig=empty":  {"--authentication-kubeconfig: DIR/empty: "},
		"--authorization-kubeconfig=empty":   {"--authorization-kubeconfig: DIR/empty: "},
		"--audit-webhook-config-file=no":     {"--audit-webhook-config-file: open DIR/no"},
		"--kubelet-certificate-authority=no": {"--kubelet-certificate-authority: open DIR/no"},
		"--kubelet-certificate-authority=key": {
			"--kubelet-certificate-authority: DIR/key: cannot find a certificate in PEM format"},
		"--client-ca-file=text":             {"--client-ca-file: DIR/text: cannot find a certificate in PEM format"},
		"--requestheader-client-ca-file=no": {"--requestheader-client-ca-file: open DIR/no"},
		"--audit-policy-file=no":            {"--audit-policy-file: open DIR/no"},
		"--audit-policy-file=text": {
			"--audit-policy-file: DIR/text: the file is not an audit policy: it has no fields"},
		"--audit-policy-file=policy-rules": {
			"--audit-policy-file: DIR/policy-rules: the file is not an audit policy: "},
		"--audit-policy-file=policy-level": {
			"--audit-policy-file: DIR/policy-level: the file is not an audit policy: "},
		"--source=prometheus --prometheus-url=http://p --prometheus-config=engine": {
			"--prometheus-config: DIR/engine: ", `preset is "x"`, "timeout is 2h"},
		"--device-config=devices":   {"--device-config: DIR/devices: ", `preset is "x"`, "interval is 1s"},
		"--tls-sni-cert-key=no,key": {"--tls-sni-cert-key: open DIR/no"},
		"--tls-cert-file=no --kubelet-port=x": {
			"--kubelet-port", "--tls-cert-file and --tls-private-key-file",
			"--tls-cert-file, --tls-private-key-file: open DIR/no"},
		"--kubeconfig=no --kubelet-client-key=k": {
			"--kubelet-client-certificate", "--kubeconfig: open DIR/no", "--kubelet-client-key: open DIR/k"},
		"--tls-cert-file=text --tls-private-key-file=empty": {
			"--tls-cert-file, --tls-private-key-file: DIR/text, DIR/empty: tls: failed to find any PEM data in certificate"},
		"--tls-cert-file=crt --tls-private-key-file=other-key": {
			"--tls-cert-file, --tls-private-key-file: DIR/crt, DIR/other-key: tls: private key does not match"},
		"--kubelet-client-certificate=key --kubelet-client-key=crt": {
			"--kubelet-client-certificate, --kubelet-client-key: DIR/key, DIR/crt: tls: ", "may have been switched"},
		"--kubelet-client-certificate=no --kubelet-client-key=no2": {
			"--kubelet-client-certificate, --kubelet-client-key: open DIR/no:",
			"--kubelet-client-certificate, --kubelet-client-key: open DIR/no2:"},
		"--kubeconfig=empty --metric-resolution=1s --tls-cert-file=no --tls-private-key-file=no --client-ca-file=no": {
			"--metric-resolution", "--kubeconfig: ", "--client-ca-file: ",
			"--tls-cert-file, --tls-private-key-file: ", "--tls-cert-file, --tls-private-key-file: "},
	} {
		o := newOptions()
		var lines []string
		o.parse(inDir(dir, args))
		o.config()
		o.checkFiles()
		if err := errors.Join(o.errs...); err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		text := strings.ReplaceAll(strings.Join(lines, "\n"), dir, "DIR")
		if len(lines) > len(want) || len(lines) == 0 && want != nil {
			t.Errorf("%s: got %d errors, want %q:\n%s", args, len(lines), want, text)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: got no %q in\n%s", args, part, text)
			}
		}
		for _, confusing := range []string{"KUBERNETES_MASTER", "struct"} {
			if strings.Contains(text, confusing) {
				t.Errorf("%s: got %s in\n%s", args, confusing, text)
			}
		}
	}
}

// inDir splits the command line, and makes the values of flags for files refer to files in dir.
func inDir(dir, args string) []string {
	var all []string
	for arg := range strings.FieldsSeq(args) {
		flag, files, _ := strings.Cut(arg, "=")
		for _, suffix := range []string{"kubeconfig", "-file", "-ca", "-authority", "-certificate", "-key", "-config"} {
			if strings.HasSuffix(flag, suffix) {
				list := strings.Split(files, ",")
				for i, file := range list {
					list[i] = filepath.Join(dir, file)
				}
				arg = flag + "=" + strings.Join(list, ",")
				break
			}
		}
		all = append(all, arg)
	}
	return all
}

// TestOutsideOfCluster checks that --kubeconfig is required, unless another error may be the reason
// that it is missing.
func TestOutsideOfCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	const required = "--kubeconfig is required outside of a cluster"
	for args, want := range map[string]bool{
		"":                       true,
		"--metric-resolution=1s": true,
		"--kubeconfg=f":          false,
		"version":                false,
		"--kubeconfig=no":        false,
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if err == nil {
			t.Fatalf("%q: got no error", args)
		}
		if got := strings.Contains(err.Error(), required); got != want {
			t.Errorf("%q: got %v, want %q in it: %v", args, err, required, want)
		}
	}
}
