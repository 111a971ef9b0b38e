// Command kubectl is the real kubectl of the newest release, built from its library. The newest one
// is needed beside the control plane's: it is the first that reads metrics.k8s.io/v1 and shows
// swap.
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
