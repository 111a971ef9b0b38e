package server

import (
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
)

// componentName is the name of this program in the z-pages of the library.
const componentName = "kube-vitals"

// nameZPages replaces the library's /statusz, which PrepareRun installs for the component
// "apiserver", and adds /flagz. Both need the permission for their path.
func (s *Server) nameZPages() {
	mux := s.api.Handler.NonGoRestfulMux
	mux.Unregister(statusz.DefaultStatuszPath)
	mux.Unregister(flagz.DefaultFlagzPath)
	flagz.Install(mux, componentName, flagz.NamedFlagSetsReader{FlagSets: s.flags})
	paths := statusz.WithListedPaths(s.api.ListedPaths())
	statusz.Install(mux, componentName, statusz.NewRegistry(s.api.EffectiveVersion, paths))
}
