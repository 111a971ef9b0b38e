// Package adapter translates the resourceRules of prometheus-adapter's configuration into the
// configuration file of package prometheus.
//
// The rules of prometheus-adapter are templates of PromQL expressions; kube-vitals reads series and
// computes rates itself. So Convert recognizes the expressions that are known to mean the usage of
// containers and nodes, and takes the selectors of series from them. It reports everything else.
package adapter
