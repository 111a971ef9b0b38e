package server

import (
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
)

// componentName is the name of this program in the z-pages of the library.
const componentName = "kube-vitals"

// nameZPages replaces the library's /statusz, which PrepareRun installs for the component
// "apiserver", and adds /flagz. Both need the permission for their path.
func (a *assembly) nameZPages() {
	mux := a.api.Handler.NonGoRestfulMux
	mux.Unregister(statusz.DefaultStatuszPath)
	flagz.Install(mux, componentName, flagz.NamedFlagSetsReader{FlagSets: a.Flags})
	paths := statusz.WithListedPaths(a.api.ListedPaths())
	statusz.Install(mux, componentName, statusz.NewRegistry(a.api.EffectiveVersion, paths))
}
