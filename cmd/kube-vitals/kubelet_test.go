package main

import "testing"

// TestKubeletErrors checks that the errors in kubelet.Config are reported by their flags.
func TestKubeletErrors(t *testing.T) {
	const plainHTTP = "--deprecated-kubelet-completely-insecure"
	const meaningless = " has no meaning with " + plainHTTP + ": leave one of them out"
	checkErrors(t, map[string][]string{
		"--kubelet-port=65536":          {"--kubelet-port is 65536, but must be from 1 to 65535"},
		"--kubelet-request-timeout=-1s": {"--kubelet-request-timeout is -1s, but must be above 0"},
		"--kubelet-max-response-bytes=-1": {
			"--kubelet-max-response-bytes is -1, but must be above 0",
			"--kubelet-max-response-bytes must be at least 65536, but is -1"},
		"--kubelet-client-certificate=c": {"--kubelet-client-key is required with --kubelet-client-certificate"},
		"--kubelet-client-key=k":         {"--kubelet-client-certificate is required with --kubelet-client-key"},
		"--kubelet-insecure-tls --kubelet-certificate-authority=f": {
			"--kubelet-certificate-authority has no meaning with --kubelet-insecure-tls: leave one of them out"},
		plainHTTP + " --kubelet-insecure-tls --kubelet-client-certificate=c --kubelet-client-key=k": {
			"--kubelet-insecure-tls" + meaningless, "--kubelet-client-certificate" + meaningless,
			"--kubelet-client-key" + meaningless},
		plainHTTP + " --kubelet-port=-1 --kubelet-certificate-authority=f": {
			"--kubelet-port is -1, but must be from 1 to 65535", "--kubelet-certificate-authority" + meaningless},
	})
}
