// Command controlplane is a whole Kubernetes control plane in one executable: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, all of the versions in go.mod. It is the one that it is
// called by: by a symbolic link, or argv[0]. So the four share one file.
//
// The module's tools are the other programs of a test cluster: one go build makes all. kubectl is one
// of them, because tests call it more than a thousand times, and it starts in half of the time alone.
//
// It is a module of its own because k8s.io/kubernetes requires its staging modules as v0.0.0, which
// do not exist. Its libraries have the versions of the server, so that go compiles them once for
// both: importing a package of the server makes those versions the lowest that go selects.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // the components expect time zones where the machine has none

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's own metrics on the components' /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "github.com/kube-vitals/kube-vitals/pkg/usage" // for the versions of libraries, see above
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	default:
		fmt.Fprintf(os.Stderr, "controlplane: called as %q; call it through a link named etcd, kube-apiserver, "+
			"kube-controller-manager or kube-scheduler\n", name)
		os.Exit(2)
	}
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}
