package main

import (
	"maps"
	"slices"
	"strings"
)

// environmentPrefix starts the names of the environment variables that set flags.
const environmentPrefix = "KUBE_VITALS_"

// environmentFlags returns the flags that environment variables can set: those that connect the server with the other
// objects of its installation. The chart and the manifests set them there, so that users who replace the args of the
// container keep them. Each has the flags that exclude it: on the command line these win.
//
// Other flags have no variable, because Kubernetes sets variables for Services: that of a Service
// kube-vitals-secure would be KUBE_VITALS_SECURE_PORT.
func environmentFlags() map[string][]string {
	ownCertificate := []string{"tls-cert-file", "tls-private-key-file"}
	return map[string][]string{
		"service":                 nil,
		"tls-apiservices":         nil,
		"tls-secret":              ownCertificate,
		"tls-names":               ownCertificate,
		"tls-ca-configmap":        ownCertificate,
		"tls-cert-file":           {"tls-secret"},
		"tls-private-key-file":    {"tls-secret"},
		"kubelet-service-account": {"kubelet-client-certificate", "deprecated-kubelet-completely-insecure"},
		"kubelet-pins":            nil, // beside --kubelet-insecure-tls they are an error: which of them is meant is unknown
		"deployment":              nil,
	}
}

// environmentName returns the name of the variable that sets a flag.
func environmentName(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// environmentHelp returns a line for each of these variables.
func environmentHelp() string {
	var lines strings.Builder
	for _, flag := range slices.Sorted(maps.Keys(environmentFlags())) {
		lines.WriteString("  " + environmentName(flag) + "\n")
	}
	return lines.String()
}

// parseEnvironment sets flags that the command line does not set to the values of environment variables, which are in
// the form NAME=VALUE, and adds all errors in them. An empty variable has no effect.
func (o *options) parseEnvironment(environment []string) {
	values := map[string]string{}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	given := map[string]bool{} // what the command line sets
	for flag, others := range environmentFlags() {
		given[flag] = o.all.Changed(flag)
		for _, other := range others {
			given[flag] = given[flag] || o.isSet(other)
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(environmentFlags())) {
		name := environmentName(flag)
		if values[name] == "" || given[flag] {
			continue
		}
		if err := o.all.Set(flag, values[name]); err != nil {
			o.errorf("environment variable %s: %w", name, err)
			continue
		}
		o.environment = append(o.environment, "--"+flag+"="+values[name])
	}
}
