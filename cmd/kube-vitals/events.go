package main

import "github.com/spf13/pflag"

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

func (o *options) validateEvents() {
	switch {
	case o.nodeEvents && o.EventDeployment == "":
		o.errorf("--node-events needs --deployment: if many nodes fail, the event is recorded on the Deployment of " +
			"kube-vitals")
	case o.EventDeployment == "":
	case !o.nodeEvents && !o.all.Changed("node-events"): // --node-events=false disables it
		o.errorf("--deployment needs --node-events")
	default:
		o.checkName("deployment", o.EventDeployment)
	}
}
