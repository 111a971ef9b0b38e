// Command kubectl is the real kubectl 1.36, built from its library: the last that reads
// metrics.k8s.io/v1beta1. All other libraries have the versions of the control plane, so that go
// compiles them once for both.
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints and exits as kubectl does
	}
}
