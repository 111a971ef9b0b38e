package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// addEventFlags adds the flags of events about nodes that cannot be scraped.
func (o *options) addEventFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.nodeEvents, "node-events", false,
		"Record an event on a node whose metrics are unavailable, and another one when they are "+
			"restored. kube-vitals needs create and patch on events in the namespace default and in "+
			"that of this pod.")
	fs.StringVar(&o.EventDeployment, "deployment", "",
		"The Deployment of this pod, in the same namespace. If more than a tenth of the nodes fail "+
			"for one reason, the event of --node-events is recorded on it instead of on the nodes. "+
			"kube-vitals needs get on it.")
}

func (o *options) validateEvents() []error {
	switch {
	case o.nodeEvents && o.EventDeployment == "":
		return []error{errors.New("--node-events needs --deployment: if many nodes fail, the event is recorded on the " +
			"Deployment of kube-vitals")}
	case o.EventDeployment == "":
		return nil
	case !o.nodeEvents && !o.all.Changed("node-events"): // --node-events=false disables it
		return []error{errors.New("--deployment needs --node-events")}
	}
	if problems := validation.IsDNS1123Subdomain(o.EventDeployment); problems != nil {
		return []error{fmt.Errorf("--deployment: %q is not a valid name: %s", o.EventDeployment,
			strings.Join(problems, "; "))}
	}
	return nil
}
