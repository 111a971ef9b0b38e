package main

import "github.com/spf13/pflag"

// addEventFlags adds the flag of events about nodes that cannot be scraped.
func (o *options) addEventFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.EventDeployment, "deployment", "",
		"The Deployment of this pod, in the same namespace; if it is set, an event is recorded on a node whose metrics "+
			"are unavailable, and another one when they are restored. If more than a tenth of the nodes fail for one "+
			"reason, the event is recorded on the Deployment instead. kube-vitals needs create and patch on events in "+
			"the namespace default and in that of this pod, and get on the Deployment. (default: no events)")
}

func (o *options) validateEvents() {
	if o.EventDeployment != "" {
		o.checkName("deployment", o.EventDeployment)
	}
}
