package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/engine"
)

// checkFiles adds an error for each file in the flags that is missing or invalid. The server reads the
// files again; checkFiles reports all errors at once, with their flags.
func (o *options) checkFiles() {
	for _, f := range []struct{ flag, file string }{
		{"--kubeconfig", o.Kubeconfig},
		{"--authentication-kubeconfig", o.Authentication.RemoteKubeConfigFile},
		{"--authorization-kubeconfig", o.Authorization.RemoteKubeConfigFile},
		{"--audit-webhook-config-file", o.Audit.WebhookOptions.ConfigFile},
	} {
		if f.flag == "--kubeconfig" || f.file != o.Kubeconfig { // else a default
			o.checkFile(f.flag, f.file, func(content []byte) error { return checkKubeconfig(f.file, content) })
		}
	}

	o.checkFile("--kubelet-certificate-authority", o.Kubelet.TLS.CAFile, checkCertificates)
	o.checkFile("--client-ca-file", o.Authentication.ClientCert.ClientCA, checkBundle)
	o.checkFile("--requestheader-client-ca-file", o.Authentication.RequestHeader.ClientCAFile, checkBundle)
	o.checkFile("--prometheus-config", o.Engine.File, func(content []byte) error {
		_, err := engine.ParseFile(content, "")
		return err
	})
	o.checkFile("--device-config", o.Devices.File, func(content []byte) error {
		_, err := device.Parse(content, filepath.Dir(o.Devices.File))
		return err
	})
	o.checkFile("--audit-policy-file", o.Audit.PolicyFile, func(content []byte) error {
		return checkObject(content, "an audit policy", func() error {
			_, err := policy.LoadPolicyFromBytes(content)
			return err
		})
	})

	serving := o.Serving.ServerCert.CertKey
	o.checkPair("--tls-cert-file, --tls-private-key-file", serving.CertFile, serving.KeyFile)
	client := o.Kubelet.TLS
	o.checkPair("--kubelet-client-certificate, --kubelet-client-key", client.CertFile, client.KeyFile)
	for _, sni := range o.Serving.SNICertKeys {
		o.checkPair("--tls-sni-cert-key", sni.CertFile, sni.KeyFile)
	}
}

// checkFile adds an error if the file of a flag cannot be read, or if check returns one.
func (o *options) checkFile(flag, file string, check func(content []byte) error) {
	if file == "" {
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		o.errorf("%s: %w", flag, err)
	} else if err := check(content); err != nil {
		o.errorf("%s: %s: %w", flag, file, err)
	}
}

// checkPair adds an error for each file that cannot be read, or if they are not a certificate and its
// private key.
func (o *options) checkPair(flags, certificate, key string) {
	var pair [2][]byte
	for i, file := range []string{certificate, key} {
		o.checkFile(flags, file, func(content []byte) error {
			pair[i] = content
			return nil
		})
	}
	if pair[0] == nil || pair[1] == nil {
		return
	}
	if _, err := tls.X509KeyPair(pair[0], pair[1]); err != nil {
		o.errorf("%s: %s, %s: %w", flags, certificate, key, err)
	}
}

// checkCluster adds an error if there are neither --kubeconfig nor the credentials of a pod's
// ServiceAccount.
func (o *options) checkCluster() {
	if o.Kubeconfig != "" {
		return
	}
	if _, err := rest.InClusterConfig(); err != nil {
		o.errorf("--kubeconfig is required outside of a cluster, or this pod has no ServiceAccount token "+
			"(set automountServiceAccountToken): %w", err)
	}
}

// checkCertificates accepts what pkg/kubelet does: at least one certificate that can be parsed.
func checkCertificates(content []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return errors.New("cannot find a certificate in PEM format")
	}
	return nil
}

// checkBundle accepts what the library does: only certificates that can be parsed.
func checkBundle(content []byte) error {
	if _, err := certutil.ParseCertsPEM(content); err != nil {
		return fmt.Errorf("cannot find a certificate in PEM format: %w", err)
	}
	return nil
}

// checkKubeconfig also reads the files that a kubeconfig file refers to.
func checkKubeconfig(file string, content []byte) error {
	err := checkObject(content, "a kubeconfig file", func() error {
		_, err := clientcmd.Load(content)
		return err
	})
	if err != nil {
		return err
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	if raw, err := config.RawConfig(); err == nil && raw.CurrentContext == "" {
		return errors.New("the file has no current-context: set one with kubectl config use-context")
	}
	_, err = config.ClientConfig()
	return err
}

// checkObject returns an error if content is not an object of Kubernetes in YAML or JSON. Unlike that of
// decode alone, it has no Go types.
func checkObject(content []byte, want string, decode func() error) error {
	var object any
	if err := yaml.Unmarshal(content, &object); err != nil {
		return fmt.Errorf("the file is neither YAML nor JSON: %w", err)
	}
	if _, ok := object.(map[string]any); !ok {
		return fmt.Errorf("the file is not %s: it has no fields", want)
	}
	err := decode()
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("%s.%s cannot be a %s", wrong.Struct, wrong.Field, wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("the file is not %s: %w", want, err)
	}
	return nil
}
