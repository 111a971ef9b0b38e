package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
)

// checkFiles adds an error for each file in the flags that is missing or invalid. The server reads the
// files again; checkFiles reports all errors at once, with their flags.
func (o *options) checkFiles() {
	var kubeconfigs []string // already checked
	for _, f := range []struct{ flag, file string }{
		{"--kubeconfig", o.Kubeconfig},
		{"--authentication-kubeconfig", o.Authentication.RemoteKubeConfigFile},
		{"--authorization-kubeconfig", o.Authorization.RemoteKubeConfigFile},
		{"--audit-webhook-config-file", o.Audit.WebhookOptions.ConfigFile},
	} {
		if !slices.Contains(kubeconfigs, f.file) {
			kubeconfigs = append(kubeconfigs, f.file)
			o.checkFile(f.flag, f.file, func(content []byte) error { return checkKubeconfig(f.file, content) })
		}
	}

	o.checkFile("--kubelet-certificate-authority", o.Kubelet.TLS.CAFile, checkAuthorities)
	o.checkFile("--client-ca-file", o.Authentication.ClientCert.ClientCA, checkCertificates)
	o.checkFile("--requestheader-client-ca-file", o.Authentication.RequestHeader.ClientCAFile, checkCertificates)
	o.checkFile("--prometheus-config", o.Prometheus.File, func(content []byte) error {
		_, err := prometheus.ParseFile(content, "")
		return err
	})
	o.checkFile("--device-config", o.Devices.File, func(content []byte) error {
		_, err := device.Parse(content, filepath.Dir(o.Devices.File))
		return err
	})
	o.checkFile("--audit-policy-file", o.Audit.PolicyFile, checkAuditPolicy)

	serving := o.Serving.ServerCert.CertKey
	o.checkPair(pair{"--tls-cert-file", serving.CertFile, "--tls-private-key-file", serving.KeyFile})
	o.checkPair(pair{
		"--kubelet-client-certificate", o.Kubelet.TLS.CertFile, "--kubelet-client-key", o.Kubelet.TLS.KeyFile,
	})
	for _, sni := range o.Serving.SNICertKeys {
		o.checkPair(pair{"--tls-sni-cert-key", sni.CertFile, "--tls-sni-cert-key", sni.KeyFile})
	}
}

// checkFile adds an error if the file of a flag cannot be read, or if check returns one. It returns the
// content of a valid file.
func (o *options) checkFile(flag, file string, check func(content []byte) error) []byte {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		o.errorf("%s: %w", flag, err)
		return nil
	}
	if err := check(content); err != nil {
		o.errorf("%s: %s: %w", flag, file, err)
		return nil
	}
	return content
}

// A pair is a certificate and its private key, with the flags that name the files.
type pair struct{ certificateFlag, certificateFile, keyFlag, keyFile string }

// checkPair adds an error if the files cannot be read, or if they are no pair.
func (o *options) checkPair(p pair) {
	certificate := o.checkFile(p.certificateFlag, p.certificateFile, hasPEM("certificate"))
	key := o.checkFile(p.keyFlag, p.keyFile, hasPEM("private key"))
	if certificate == nil || key == nil {
		return
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil {
		o.errorf("%s %s does not match %s %s: %w", p.certificateFlag, p.certificateFile, p.keyFlag, p.keyFile, err)
	}
}

// checkCluster adds an error if there are neither --kubeconfig nor the credentials of a pod's
// ServiceAccount.
func (o *options) checkCluster() {
	if o.Kubeconfig != "" {
		return
	}
	_, err := rest.InClusterConfig()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		o.errorf("--kubeconfig is required outside of a cluster " +
			"(KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)")
	case err != nil:
		o.errorf("this pod has no ServiceAccount token for the API server: "+
			"set automountServiceAccountToken or --kubeconfig: %w", err)
	}
}

// checkAuthorities accepts what pkg/kubelet does: at least one certificate that can be parsed.
func checkAuthorities(content []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return errors.New("cannot find a certificate in PEM format")
	}
	return nil
}

func checkCertificates(content []byte) error {
	if _, err := certutil.ParseCertsPEM(content); err != nil {
		return fmt.Errorf("cannot find a certificate in PEM format: %w", err)
	}
	return nil
}

// hasPEM returns a function that accepts what has a certificate or a private key, which tls then parses.
func hasPEM(kind string) func([]byte) error {
	return func(content []byte) error {
		for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
			if strings.HasSuffix(block.Type, strings.ToUpper(kind)) {
				return nil
			}
		}
		return fmt.Errorf("cannot find a %s in PEM format", kind)
	}
}

func checkKubeconfig(file string, content []byte) error {
	if err := checkYAML(content, "a kubeconfig file"); err != nil {
		return err
	}
	config, err := clientcmd.Load(content)
	switch {
	case err != nil:
		return fmt.Errorf("the file is not a kubeconfig file: %w", withoutGoTypes(err))
	case len(config.Clusters) == 0:
		return errors.New("the file is not a kubeconfig file: it has no clusters")
	case config.CurrentContext == "":
		return errors.New("the file has no current-context: set one with kubectl config use-context")
	}
	if config.Contexts[config.CurrentContext] == nil {
		return fmt.Errorf("the file has no context %q, which is its current-context", config.CurrentContext)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file} // also reads the files that it refers to
	_, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	return err
}

func checkAuditPolicy(content []byte) error {
	if err := checkYAML(content, "an audit policy"); err != nil {
		return err
	}
	if _, err := policy.LoadPolicyFromBytes(content); err != nil {
		return fmt.Errorf("the file is not an audit policy: %w", withoutGoTypes(err))
	}
	return nil
}

// withoutGoTypes returns err, or an error without Go types if a field has the wrong type.
func withoutGoTypes(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s.%s cannot be a %s", wrong.Struct, wrong.Field, wrong.Value)
	}
	return err
}

// checkYAML returns an error if content is not a mapping in YAML or JSON, for which the decoders of
// Kubernetes would print Go types.
func checkYAML(content []byte, want string) error {
	if len(bytes.TrimSpace(content)) == 0 {
		return fmt.Errorf("the file is empty, but must be %s", want)
	}
	var object any
	if err := yaml.Unmarshal(content, &object); err != nil {
		return fmt.Errorf("the file is neither YAML nor JSON: %w", err)
	}
	if _, ok := object.(map[string]any); !ok {
		return fmt.Errorf("the file is not %s: it has no fields", want)
	}
	return nil
}
