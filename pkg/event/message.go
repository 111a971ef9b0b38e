package event

import (
	"fmt"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Messages contain no times, names or addresses. Events with equal messages are counted in one
// object, and the events of Nodes can be read by everyone who may read events in the namespace
// default. The API server rejects messages of more than 1024 bytes.

// nodeRestored is the message about a node that can be read again.
const nodeRestored = "kube-vitals can read the metrics of this node again"

// nodeMessage returns the message about a node that fails.
func nodeMessage(cause reason.Reason) string {
	return "kube-vitals cannot read the metrics of this node: " + describeNodes(cause)
}

// deploymentMessage returns the message about many nodes that fail.
func deploymentMessage(cause reason.Reason, failing, nodes int) string {
	return fmt.Sprintf("kube-vitals cannot read the metrics of %d of %d nodes: %s", failing, nodes, describeNodes(cause))
}

// deploymentRestored returns the message that no longer many nodes fail.
func deploymentRestored(failing, nodes int) string {
	return fmt.Sprintf("kube-vitals can read the metrics of %d of %d nodes again", nodes-failing, nodes)
}

// engineRestored is the message about an engine that can be read again.
const engineRestored = "kube-vitals can read the engine again"

// engineMessage returns the message about an engine that cannot be read.
func engineMessage(cause reason.Reason) string {
	return "kube-vitals cannot read the engine, so metrics expire: " +
		describe(cause, cause.DescribeEngine(), reason.EngineFailing.URL())
}

// describeNodes returns the problem, the name, the cure and the URL of a reason. It is that of kubelets:
// with an engine, nodes fail with NotInEngine only, which has one description.
func describeNodes(cause reason.Reason) string { return describe(cause, cause.Describe(), cause.URL()) }

func describe(cause reason.Reason, description reason.Description, url string) string {
	text := fmt.Sprintf("%s (%s)", description.Problem, cause)
	if description.Cure != "" {
		text += ": " + description.Cure
	}
	return text + "; see " + url
}
