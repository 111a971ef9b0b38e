package main

import (
	"fmt"
	"testing"
)

func TestKubeletErrors(t *testing.T) {
	const plainHTTP = "--deprecated-kubelet-completely-insecure"
	const noTLS = " has no effect with " + plainHTTP + ", with which there is no TLS: remove one of them"
	const pair = "--kubelet-client-certificate and --kubelet-client-key must be set together"
	const unverified = "--kubelet-certificate-authority has no effect with %s, with which no certificate is verified: " +
		"remove one of them"
	checkErrors(t, map[string][]string{
		"--kubelet-port=65536":            {"--kubelet-port must be from 1 to 65535, but is 65536"},
		"--kubelet-request-timeout=-1s":   {"--kubelet-request-timeout must be above 0, but is -1s"},
		"--kubelet-max-response-bytes=-1": {"--kubelet-max-response-bytes must be at least 65536, but is -1"},
		"--kubelet-client-certificate=c":  {pair},
		"--kubelet-client-key=k":          {pair},

		"--kubelet-insecure-tls --kubelet-certificate-authority=f": {fmt.Sprintf(unverified, "--kubelet-insecure-tls")},
		plainHTTP + " --kubelet-insecure-tls --kubelet-client-certificate=c --kubelet-client-key=k": {
			"--kubelet-insecure-tls" + noTLS, "--kubelet-client-certificate" + noTLS},
		plainHTTP + " --kubelet-port=-1 --kubelet-certificate-authority=f": {
			"--kubelet-port must be from 1 to 65535, but is -1", fmt.Sprintf(unverified, plainHTTP)},
	})
}
