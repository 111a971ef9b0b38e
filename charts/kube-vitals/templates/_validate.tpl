{{/*
Fails for values that render without an error but cannot work. The message names the values and the cure. Checks of a
single value are in values.schema.json.
*/}}
{{- define "kube-vitals.validate" -}}
{{- include "kube-vitals.validateSections" . }}
{{- include "kube-vitals.validateForeignNames" . }}
{{- include "kube-vitals.validateRelease" . }}
{{- $v := .Values }}
{{- $tlsType := include "kube-vitals.tlsType" . }}
{{- $repository := include "kube-vitals.repository" . }}
{{- $tag := $v.image.tag | default "" }}
{{- $theirs := regexMatch "metrics[-_]?server[^/]*$" $repository | ternary $repository "" }}
{{- if and (not $theirs) (regexMatch "metrics[-_]?server" $tag) }}
{{- $theirs = printf "%s with image.tag=%s" $repository $tag }}
{{- end }}
{{- if $theirs }}
{{- fail (printf "image.repository=%s is the image of metrics-server: remove image.repository and image.tag, or set both to those of kube-vitals in your mirror" $theirs) }}
{{- end }}
{{- /* Only the tags of this repository are known. 0.1 does not read the environment variables that this chart sets. */}}
{{- $release := printf "^v?%s[.]" (regexFind "^[0-9]+[.][0-9]+" .Chart.AppVersion | replace "." "[.]") }}
{{- if and (eq $repository "ghcr.io/kube-vitals/kube-vitals") (not $v.image.digest)
  (regexMatch "^v?[0-9]+[.][0-9]+[.][0-9]+" $tag) (not (regexMatch $release $tag)) }}
{{- fail (printf "image.tag=%s is not a version of kube-vitals that this chart installs, which is %s. If it is a version of metrics-server, remove image.tag" $tag .Chart.AppVersion) }}
{{- end }}
{{- if ($v.addonResizer).enabled }}
{{- fail "addonResizer.enabled=true: this chart has no addon-resizer: set resources for the size of the cluster (docs/install.md), and remove addonResizer" }}
{{- end }}
{{- $creates := or (eq $tlsType "kube-vitals") (and (has $tlsType (list "helm" "cert-manager")) (not (include "kube-vitals.unverified" .))) }}
{{- if and $creates (include "kube-vitals.hasFlag" (dict "root" . "names" "tls-cert-file|tls-private-key-file")) }}
{{- fail (printf "tls.type=%s creates the serving certificate, and args name another one by --tls-cert-file: remove the flag, or set tls.type=existingSecret and tls.existingSecret.name, or keep the flag, and set tls.type=self-signed. The API server verifies your certificate if it is for SERVICE.NAMESPACE.svc, and with existingSecret, apiService.caBundle or an annotation cert-manager.io/inject-ca-from only" $tlsType) }}
{{- end }}
{{- if $v.apiService.caBundle }}
{{- if eq $tlsType "kube-vitals" }}
{{- fail "tls.type=kube-vitals: leave apiService.caBundle empty: the server writes the caBundle" }}
{{- else if has $tlsType (list "helm" "self-signed") }}
{{- fail (printf "tls.type=%s creates the certificate: leave apiService.caBundle empty" $tlsType) }}
{{- end }}
{{- end }}
{{- if and (eq $tlsType "cert-manager") $v.tls.certManager.existingIssuer.enabled (not $v.tls.certManager.existingIssuer.name) }}
{{- fail "tls.certManager.existingIssuer.enabled=true: set tls.certManager.existingIssuer.name to the issuer that signs the certificate" }}
{{- end }}
{{- $isVerifiable := or $v.apiService.caBundle (include "kube-vitals.hasInjector" .) (include "kube-vitals.unverified" .) (not $v.apiService.create) }}
{{- if and (eq $tlsType "cert-manager") (not (or $isVerifiable $v.tls.certManager.addInjectorAnnotations)) }}
{{- fail "tls.certManager.addInjectorAnnotations=false: the API server cannot verify the certificate: set apiService.caBundle to its CA, or apiService.insecureSkipTLSVerify=true" }}
{{- end }}
{{- if and (eq $tlsType "existingSecret") (not (or $isVerifiable $v.tls.existingSecret.lookup)) }}
{{- fail "tls.existingSecret.lookup=false: the API server cannot verify the certificate: set apiService.caBundle to its CA, or an annotation such as cert-manager.io/inject-ca-from in apiService.annotations, or apiService.insecureSkipTLSVerify=true" }}
{{- end }}
{{- if include "kube-vitals.admissionPolicy" . }}
{{- if ne $tlsType "kube-vitals" }}
{{- fail (printf "tls.admissionPolicy.enabled=true restricts a permission that the server only has with tls.type=kube-vitals, not with tls.type=%s" $v.tls.type) }}
{{- end }}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- fail (printf "tls.admissionPolicy.enabled=true needs Kubernetes 1.30 or newer; this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
{{- if include "kube-vitals.usesPrometheus" . }}
{{- $prometheus := $v.source.prometheus }}
{{- if not $prometheus.url }}
{{- fail "source.type=prometheus: set source.prometheus.url to the URL of the engine" }}
{{- end }}
{{- if ($v.ephemeralStorage).enabled }}
{{- fail "ephemeralStorage.enabled=true needs source.type=kubelet: an engine does not have what kubelets report of ephemeral-storage" }}
{{- end }}
{{- if $v.rateWindow }}
{{- fail "rateWindow needs source.type=kubelet: with source.type=prometheus, the pace of the engine decides what a rate covers" }}
{{- end }}
{{- if or $v.activeResolution $v.activeBudget }}
{{- fail "activeResolution and activeBudget need source.type=kubelet: an engine decides itself how often it scrapes: leave them empty" }}
{{- end }}
{{- $ofArgs := dict "Values" (dict "defaultArgs" list "args" $v.args) }}
{{- if or (include "kube-vitals.hasFlag" (dict "root" $ofArgs "names" "kubelet-[a-z-]+"))
  (include "kube-vitals.hasFlag" (dict "root" . "names" "deprecated-kubelet-[a-z-]+|rate-window|active-(resolution|budget)")) }}
{{- fail "source.type=prometheus: remove --kubelet-*, --rate-window and --active-* from args and defaultArgs: the server does not connect to kubelets" }}
{{- end }}
{{- if and $prometheus.config $prometheus.existingSecret }}
{{- fail "source.prometheus.config and source.prometheus.existingSecret contradict each other: set one of them" }}
{{- end }}
{{- end }}
{{- if and $v.hostNetwork.enabled (eq (int $v.containerPort) 10250) }}
{{- fail "hostNetwork.enabled=true: the kubelet already listens on port 10250 of the node: set another containerPort, such as 4443" }}
{{- end }}
{{- $ports := list }}
{{- range include "kube-vitals.flags" . | fromJsonArray }}
{{- if regexMatch "^--?secure-port(=|$)" . }}{{ $ports = append $ports (splitList "=" . | last) }}{{ end }}
{{- end }}
{{- if without $ports (toString $v.containerPort) }}
{{- fail "args and defaultArgs cannot set --secure-port, since probes and the Service use containerPort: set containerPort instead" }}
{{- end }}
{{- if include "kube-vitals.hasFlag" (dict "root" . "names" "kubelet-service-account") }}
{{- fail "args and defaultArgs cannot set --kubelet-service-account, since the values decide for which ServiceAccount the roles are: set kubelet.serviceAccount.name instead" }}
{{- end }}
{{- if include "kube-vitals.hasFlag" (dict "root" . "names" "kubelet-pins") }}
{{- fail "args and defaultArgs cannot set --kubelet-pins, since the role depends on it: set kubelet.tls=pin instead" }}
{{- end }}
{{- if and (include "kube-vitals.kubeletPinsName" .) (include "kube-vitals.kubeletsUnverifiedBy" .) }}
{{- fail "kubelet.tls=pin and the option to verify no kubelet contradict each other: remove kubelet.insecureTLS, --kubelet-insecure-tls and --deprecated-kubelet-completely-insecure" }}
{{- end }}
{{- if and (include "kube-vitals.devicesConfigMapName" .) (include "kube-vitals.hasFlag" (dict "root" . "names" "device-config")) }}
{{- fail "args and defaultArgs cannot set --device-config beside devices.exporters: set one of them" }}
{{- end }}
{{- if include "kube-vitals.hasFlag" (dict "root" . "names" "deployment") }}
{{- fail "args and defaultArgs cannot set --deployment, since the roles depend on it: set events.enabled instead" }}
{{- end }}
{{- if include "kube-vitals.hasFlag" (dict "root" . "names" "tls-secret|tls-names|tls-ca-configmap") }}
{{- fail "args and defaultArgs cannot set --tls-secret, --tls-names and --tls-ca-configmap, since the roles and the Service use fixed names: tls.type=kube-vitals sets all of them" }}
{{- end }}
{{- if and $v.kubelet.insecureTLS (not (include "kube-vitals.usesPrometheus" .)) (include "kube-vitals.hasFlag" (dict "root" . "names" "kubelet-certificate-authority")) }}
{{- fail "kubelet.insecureTLS=true and --kubelet-certificate-authority contradict each other: set one of them" }}
{{- end }}
{{- $open := "" }}
{{- range include "kube-vitals.flags" . | fromJsonArray }}
{{- if regexMatch "^--?authorization-always-allow-paths=" . }}{{ $open = printf "%s,%s," $open (splitList "=" . | last) }}{{ end }}
{{- end }}
{{- if and $open (not $v.metrics.enabled) (not (and (contains ",/livez," $open) (contains ",/readyz," $open))) }}
{{- fail "--authorization-always-allow-paths replaces its default, so the probes would depend on the API server: add /healthz,/readyz,/livez to it, or remove the flag and set metrics.enabled=true" }}
{{- end }}
{{- if include "kube-vitals.hasFlag" (dict "root" . "names" "logtostderr|alsologtostderr|stderrthreshold") }}
{{- fail "args and defaultArgs cannot set --logtostderr, --alsologtostderr and --stderrthreshold, which metrics-server rejects, too, in new versions: remove them: the log is written to stderr" }}
{{- end }}
{{- include "kube-vitals.validateSelectors" . }}
{{- range $folder, $mounted := include "kube-vitals.folderMounts" . | fromJson }}
{{- $isReadOnlyRoot := eq (toString (dig "readOnlyRootFilesystem" false ($v.securityContext | default dict))) "true" }}
{{- if or (eq $mounted "readOnly") (and (not $mounted) $isReadOnlyRoot) }}
{{- fail (printf "--cert-dir and --audit-log-path need a writable folder, and %s volume is mounted at %s: name a folder below /tmp, or set extraVolumes and extraVolumeMounts. Without --cert-dir the certificate stays in memory" (empty $mounted | ternary "no" "a read-only") $folder) }}
{{- end }}
{{- end }}
{{- with include "kube-vitals.podDisruptionBudget" . | fromJson }}
{{- if and .enabled (hasKey . "minAvailable") (hasKey . "maxUnavailable") }}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable contradict each other: set one of them" }}
{{- end }}
{{- end }}
{{- if eq (include "kube-vitals.kubeletServiceAccountName" .) (include "kube-vitals.serviceAccountName" .) }}
{{- fail "kubelet.serviceAccount.name is the ServiceAccount of the pods: name another one, or set kubelet.serviceAccount.create=false and an empty name, so that kubelets get the token of the pods" }}
{{- end }}
{{- if eq $tlsType "self-signed" }}
{{- if and $v.serviceMonitor.enabled (not $v.metrics.enabled) }}
{{- fail "serviceMonitor.enabled=true would send Prometheus' token to a server that it cannot verify (tls.type=self-signed): set another tls.type, or metrics.enabled=true, with which no token is sent" }}
{{- end }}
{{- if and $v.podMonitor.enabled $v.podMonitor.authorization }}
{{- fail "podMonitor.authorization would be sent to a server that Prometheus cannot verify (tls.type=self-signed): set another tls.type, or metrics.enabled=true without podMonitor.authorization" }}
{{- end }}
{{- end }}
{{- if and $v.podMonitor.enabled (not (or $v.metrics.enabled $v.podMonitor.authorization)) }}
{{- fail "podMonitor.enabled needs metrics.enabled=true or podMonitor.authorization: a PodMonitor cannot use Prometheus' own token; serviceMonitor.enabled can" }}
{{- end }}
{{- end }}

{{/*
Fails if a section is missing. Other templates use it without a check, so tests/top.yaml, which helm renders first, includes this.
*/}}
{{- define "kube-vitals.validateSections" -}}
{{- $missing := list }}
{{- range list "image" "serviceAccount" "rbac" "apiService" "hostNetwork" "kubelet" "service" "metrics" "podMonitor" "tls" "tests" }}
{{- if kindIs "invalid" (index $.Values .) }}{{ $missing = append $missing . }}{{ end }}
{{- end }}
{{- if $missing }}
{{- fail (printf "the values have no %s: upgrade with --reset-then-reuse-values instead of --reuse-values, and set no section to null" (join ", " $missing)) }}
{{- end }}
{{- end }}

{{/*
Fails for values of Bitnami's and other charts that have another name here. The keys are paths of values. Empty ones, as
in Bitnami's values.yaml, have no effect, unless they are booleans.
*/}}
{{- define "kube-vitals.validateForeignNames" -}}
{{- $names := dict "extraArgs" "args" "extraEnvVars" "env" "extraDeploy" "extraObjects" "pdb" "podDisruptionBudget"
  "containerPorts" "containerPort" "containerSecurityContext" "securityContext" "podAffinityPreset" "affinity"
  "podAntiAffinityPreset" "topologySpreadConstraints or affinity" "nodeAffinityPreset" "affinity"
  "commonAnnotations" "podAnnotations, deploymentAnnotations and those of each section"
  "image.registry" "image.repository with the registry" "image.pullSecrets" "imagePullSecrets" "service.ports" "service.port"
  "replicaCount" "replicas" "service.targetPort" "containerPort" "securePort" "containerPort" "command" "args"
  "labels" "commonLabels" "tls.args" "args" "service.metrics" "metrics"
  "hostNetwork" "hostNetwork.enabled" "podSecurityContext.enabled" "podSecurityContext without it, or to null,"
  "securityContext.enabled" "securityContext without it, or to null," "startupProbe.enabled" "the whole startupProbe, or null,"
  "livenessProbe.enabled" "the whole livenessProbe, or null," "readinessProbe.enabled" "the whole readinessProbe, or null," }}
{{- $wrong := list }}
{{- range $path, $cure := $names }}
{{- $value := $.Values }}
{{- range splitList "." $path }}
{{- if kindIs "map" $value }}{{ $value = get $value . }}{{ else }}{{ $value = "" }}{{ end }}
{{- end }}
{{- if or (kindIs "bool" $value) (and $value (ne $path "hostNetwork")) }}
{{- $wrong = append $wrong (printf "%s is a value of another chart: set %s instead" $path $cure) }}
{{- end }}
{{- end }}
{{- if $wrong }}{{ fail (join "; " $wrong) }}{{ end }}
{{- end }}

{{/*
Fails for a topology spread constraint with labels that these pods do not have: it would replace that of the chart, and have no
effect. An anti-affinity, and expressions, may select other pods on purpose, so they only fail for a label of metrics-server, and
an anti-affinity only if no other metrics-server stays.
*/}}
{{- define "kube-vitals.validateSelectors" -}}
{{- range .Values.topologySpreadConstraints }}
{{- include "kube-vitals.validateSelector" (dict "root" $ "selector" .labelSelector "pattern" "") }}
{{- end }}
{{- $anti := dig "podAntiAffinity" nil (.Values.affinity | default dict) | default dict }}
{{- $terms := $anti.requiredDuringSchedulingIgnoredDuringExecution | default list }}
{{- range $anti.preferredDuringSchedulingIgnoredDuringExecution }}{{ $terms = append $terms .podAffinityTerm }}{{ end }}
{{- if and .Values.apiService.create (has "v1beta1" (include "kube-vitals.apiVersions" . | fromYamlArray)) }}
{{- range compact $terms }}
{{- include "kube-vitals.validateSelector" (dict "root" $ "selector" .labelSelector "pattern" "metrics-server$") }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Fails if a label selector requires a label that these pods do not have. Takes a dict of root ($), selector, and pattern, which
values of matchLabels match.
*/}}
{{- define "kube-vitals.validateSelector" -}}
{{- $labels := merge (include "kube-vitals.selectorLabels" .root | fromYaml) (.root.Values.podLabels | default dict) }}
{{- $selector := .selector | default dict }}
{{- $wanted := dict }}
{{- range $key, $value := $selector.matchLabels }}
{{- if regexMatch $.pattern (toString $value) }}{{ $_ := set $wanted $key (list $value) }}{{ end }}
{{- end }}
{{- range $selector.matchExpressions }}
{{- if and (eq .operator "In") (regexMatch "metrics-server(,|$)" (join "," .values)) }}
{{- $_ := set $wanted .key .values }}
{{- end }}
{{- end }}
{{- range $key, $values := $wanted }}
{{- if not (has (get $labels $key) $values) }}
{{- $cure := printf "select app.kubernetes.io/name: %s there" (get $labels "app.kubernetes.io/name") }}
{{- if and (eq $key "app.kubernetes.io/name") (has "metrics-server" $values) (contains "metrics-server" $.root.Release.Name) }}
{{- $cure = printf "set nameOverride=metrics-server, or %s" $cure }}
{{- end }}
{{- if not (hasKey (include "kube-vitals.selectorLabels" $.root | fromYaml) $key) }}
{{- $cure = printf "%s, or set podLabels" $cure }}
{{- end }}
{{- fail (printf "topologySpreadConstraints or affinity select pods with the label %s=%s, which these pods do not have: %s" $key (join "," $values) $cure) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Fails for an upgrade that helm would reject too late, after it has changed objects, or that would interrupt metrics:
- The selector of a Deployment is immutable, but that of its Service is not: the Service would lose its endpoints.
- In a release that was metrics-server's until now, the APIServices would refer to a Service without ready pods, or the API
  server would verify pods of metrics-server. Then helm rollback would fail, too: it does not remove the server's caBundle.
  Or helm would delete the APIService, which the new values do not render.
Nothing fails if helm does not know the cluster, as with helm template: lookup then returns nothing. Who creates neither
APIServices nor RBAC may have permissions in one namespace only, and lookup fails without them.
*/}}
{{- define "kube-vitals.validateRelease" -}}
{{- $name := include "kube-vitals.fullname" . }}
{{- $namespace := include "kube-vitals.namespace" . }}
{{- $deployment := lookup "apps/v1" "Deployment" $namespace $name | default dict }}
{{- $set := list }}
{{- $apiService := dict }}
{{- if or .Values.apiService.create .Values.rbac.create }}
{{- $apiService = lookup "apiregistration.k8s.io/v1" "APIService" "" "v1beta1.metrics.k8s.io" | default dict }}
{{- end }}
{{- $annotations := dig "metadata" "annotations" nil $apiService | default dict }}
{{- $service := dig "spec" "service" nil $apiService }}
{{- if and $service (eq .Release.Name (get $annotations "meta.helm.sh/release-name" | default ""))
  (eq .Release.Namespace (get $annotations "meta.helm.sh/release-namespace" | default "")) }}
{{- $serving := lookup "apps/v1" "Deployment" $service.namespace $service.name | default dict }}
{{- $isKubeVitals := false }}
{{- range dig "spec" "template" "spec" "containers" list $serving }}
{{- if eq .name "kube-vitals" }}{{ $isKubeVitals = true }}{{ end }}
{{- end }}
{{- $isKept := eq "keep" (get $annotations "helm.sh/resource-policy" | default "") }}
{{- if and $serving (not $isKubeVitals) (or .Values.apiService.create (not $isKept)) }}
{{- $deployment = $serving }}
{{- if not .Values.apiService.create }}
{{- $set = append $set "apiService.create=true" }}
{{- else if not (has "v1beta1" (include "kube-vitals.apiVersions" . | fromYamlArray)) }}
{{- $set = append $set "apiService.versions={v1,v1beta1}" }}
{{- end }}
{{- if and $apiService.spec.insecureSkipTLSVerify .Values.apiService.create (not (include "kube-vitals.unverified" .)) }}
{{- $set = append $set "apiService.insecureSkipTLSVerify=true" }}
{{- end }}
{{- end }}
{{- end }}
{{- if $deployment }}
{{- $labels := $deployment.spec.selector.matchLabels | default dict }}
{{- $nameLabel := get $labels "app.kubernetes.io/name" }}
{{- $reachable := dict "app.kubernetes.io/name" $nameLabel "app.kubernetes.io/instance" .Release.Name }}
{{- $object := printf "Deployment %s/%s" $deployment.metadata.namespace $deployment.metadata.name }}
{{- if or (ne (toJson $labels) (toJson $reachable)) $deployment.spec.selector.matchExpressions }}
{{- $cure := "install kube-vitals in a release of another name beside it" }}
{{- if .Values.fullnameOverride }}
{{- $cure = "remove fullnameOverride or set another one, and install kube-vitals in a release of its own beside it" }}
{{- end }}
{{- fail (printf "%s exists, and no value of this chart results in its selector, which is immutable: %s (docs/moving-from-metrics-server.md)" $object $cure) }}
{{- end }}
{{- if ne $namespace $deployment.metadata.namespace }}
{{- $set = prepend $set (printf "namespaceOverride=%s" $deployment.metadata.namespace) }}
{{- end }}
{{- $renamed := dict "nameOverride" $nameLabel "fullnameOverride" .Values.fullnameOverride }}
{{- if ne $deployment.metadata.name (include "kube-vitals.fullname" (dict "Values" $renamed "Release" .Release "Chart" .Chart)) }}
{{- $set = prepend $set (printf "fullnameOverride=%s" $deployment.metadata.name) }}
{{- end }}
{{- if ne $nameLabel (include "kube-vitals.name" .) }}
{{- $set = prepend $set (printf "nameOverride=%s" $nameLabel) }}
{{- end }}
{{- if $set }}
{{- fail (printf "%s serves metrics, and this upgrade would fail or interrupt them: set %s (docs/moving-from-metrics-server.md#in-its-release)" $object (join " and " $set)) }}
{{- end }}
{{- end }}
{{- end }}
