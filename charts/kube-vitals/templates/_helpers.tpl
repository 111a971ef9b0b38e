{{/* The chart's name in labels. */}}
{{- define "kube-vitals.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of the release's objects: the release's name if it contains the chart's name. */}}
{{- define "kube-vitals.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "kube-vitals.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kube-vitals.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "kube-vitals.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "kube-vitals.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* "true" if the metrics are read from a Prometheus-compatible engine instead of from kubelets. */}}
{{- define "kube-vitals.usesPrometheus" -}}
{{- if eq (dig "type" "kubelet" (.Values.source | default dict)) "prometheus" }}true{{ end }}
{{- end }}

{{/* The Secret with the configuration of the engine. Empty if there is none. */}}
{{- define "kube-vitals.prometheusSecretName" -}}
{{- if include "kube-vitals.usesPrometheus" . }}
{{- $prometheus := .Values.source.prometheus }}
{{- if $prometheus.existingSecret }}{{ $prometheus.existingSecret }}
{{- else if $prometheus.config }}{{ include "kube-vitals.fullname" . }}-prometheus
{{- end }}
{{- end }}
{{- end }}

{{/* The ConfigMap with the exporters of devices. Empty if there are none. */}}
{{- define "kube-vitals.devicesConfigMapName" -}}
{{- if dig "exporters" list (.Values.devices | default dict) }}{{ include "kube-vitals.fullname" . }}-devices{{ end }}
{{- end }}

{{/*
The ports of the exporters of devices and of the engine, as in the NetworkPolicy's API. An exporter without a port has that
of its preset. NetworkPolicies see the port of the pod: the port in a URL is that of a Service, which may differ.
*/}}
{{- define "kube-vitals.sourcePorts" -}}
{{- $ports := list }}
{{- range dig "exporters" list (.Values.devices | default dict) }}
{{- $ports = append $ports (.port | default (get (dict "dcgm" "9400") (.preset | default "")) | toString) }}
{{- end }}
{{- if include "kube-vitals.usesPrometheus" . }}
{{- $url := urlParse .Values.source.prometheus.url }}
{{- $ports = append $ports (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https"))) }}
{{- end }}
{{- range $ports | compact | uniq }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end }}

{{/* "true" if the server sends tokens to kubelets. */}}
{{- define "kube-vitals.sendsToken" -}}
{{- $names := "kubelet-client-certificate|deprecated-kubelet-completely-insecure(=true)?$" }}
{{- if not (or (include "kube-vitals.usesPrometheus" .) (include "kube-vitals.hasFlag" (dict "root" . "names" $names))) }}true{{ end }}
{{- end }}

{{/*
The ServiceAccount whose tokens the server sends to kubelets. Empty in the single-account form: kubelet.serviceAccount.create
is false and names none. Also empty if the server sends none.
*/}}
{{- define "kube-vitals.kubeletServiceAccountName" -}}
{{- $name := dig "serviceAccount" "name" "" .Values.kubelet }}
{{- if and (or $name (include "kube-vitals.createKubeletServiceAccount" .)) (include "kube-vitals.sendsToken" .) }}
{{- default (printf "%s-kubelet" (include "kube-vitals.fullname" .)) $name }}
{{- end }}
{{- end }}

{{/*
"true" if the chart creates that ServiceAccount. The default is in the template too, since helm upgrade --reuse-values does not
add the defaults of new sections.
*/}}
{{- define "kube-vitals.createKubeletServiceAccount" -}}
{{- if and (dig "serviceAccount" "create" true .Values.kubelet) (include "kube-vitals.sendsToken" .) }}true{{ end }}
{{- end }}

{{/*
The ConfigMap in which the server pins the keys of kubelets. Empty if it does not. The default is in the template too, since
helm upgrade --reuse-values does not add the defaults of new values.
*/}}
{{- define "kube-vitals.kubeletPinsName" -}}
{{- if and (eq (dig "tls" "verify" .Values.kubelet) "pin") (not (include "kube-vitals.usesPrometheus" .)) }}
{{- printf "%s-kubelet-pins" (include "kube-vitals.fullname" .) }}
{{- end }}
{{- end }}

{{/*
"true" if the server records events. The default is in the template too, since helm upgrade --reuse-values does not add the
defaults of new sections.
*/}}
{{- define "kube-vitals.events" -}}
{{- if dig "enabled" true (.Values.events | default dict) }}true{{ end }}
{{- end }}

{{/*
"true" if the chart creates the admission policy: by default where the server can change the APIServices and the API exists.
The version of Kubernetes decides: helm template does not know the kinds of an API unless --api-versions names them.
*/}}
{{- define "kube-vitals.admissionPolicy" -}}
{{- $enabled := dig "admissionPolicy" "enabled" nil .Values.tls }}
{{- if kindIs "invalid" $enabled }}
{{- $enabled = and (eq (include "kube-vitals.tlsType" .) "kube-vitals") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{/*
The versions that have an APIService, as YAML in the order of their names. The default is in the template too, since helm
upgrade --reuse-values does not add the defaults of new values.
*/}}
{{- define "kube-vitals.apiVersions" -}}
{{- .Values.apiService.versions | default (list "v1" "v1beta1") | sortAlpha | toYaml }}
{{- end }}

{{/* The names of these APIServices, separated by commas. */}}
{{- define "kube-vitals.apiServices" -}}
{{- range $i, $version := include "kube-vitals.apiVersions" . | fromYamlArray }}{{ if $i }},{{ end }}{{ $version }}.metrics.k8s.io{{ end }}
{{- end }}

{{/* Labels that select the pods. They may never change over a release's life: a Deployment's selector is immutable. */}}
{{- define "kube-vitals.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kube-vitals.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels of all objects, as YAML. */}}
{{- define "kube-vitals.labels" -}}
{{- include "kube-vitals.labelsWith" (dict "root" . "added" dict) }}
{{- end }}

{{/* The labels of an object to which a value adds some. Takes a dict of root ($) and added. Of equal keys, the last one counts. */}}
{{- define "kube-vitals.labelsWith" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $labels := dict "helm.sh/chart" $chart "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- range list .root.Values.commonLabels .added }}
{{- range $key, $value := include "kube-vitals.addedLabels" . | fromYaml }}{{ $_ := set $labels $key $value }}{{ end }}
{{- end }}
{{- merge (include "kube-vitals.selectorLabels" .root | fromYaml) $labels | toYaml }}
{{- end }}

{{/* Labels that a value adds, without those that select the pods: a label with another value would not match the selector. */}}
{{- define "kube-vitals.addedLabels" -}}
{{- include "kube-vitals.strings" (omit (. | default dict) "app.kubernetes.io/name" "app.kubernetes.io/instance") }}
{{- end }}

{{/* A map of a value as YAML, without keys that are null. Empty if there are no others. */}}
{{- define "kube-vitals.strings" -}}
{{- $strings := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $strings $key $value }}{{ end }}
{{- end }}
{{- with $strings }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The repository of the image. The default is in the template too, since some set it to null. */}}
{{- define "kube-vitals.repository" -}}
{{- .Values.image.repository | default "ghcr.io/kube-vitals/kube-vitals" }}
{{- end }}

{{/* The image. Only releases and their candidates have a published one, whose tag is the version. Packages of them have its digest. */}}
{{- define "kube-vitals.image" -}}
{{- with .Values.image }}
{{- $digest := .digest }}
{{- if not .tag }}
{{- $digest = default (index $.Chart.Annotations "kube-vitals.io/image-digest") .digest }}
{{- end }}
{{- if not (or $digest .tag (regexMatch "^[0-9]+[.][0-9]+[.][0-9]+(-(alpha|beta|rc)[.]?[0-9]+)?$" $.Chart.AppVersion)) }}
{{- fail (printf "there is no published image of version %s: build and push one with `make image`, and set image.repository and image.tag, or install a release" $.Chart.AppVersion) }}
{{- end }}
{{- if $digest }}
{{- printf "%s@%s" (include "kube-vitals.repository" $) $digest }}
{{- else }}
{{- printf "%s:%s" (include "kube-vitals.repository" $) (default (printf "v%s" $.Chart.AppVersion) .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
tls.type, with the name that metrics-server's chart has for self-signed. It is "flags" if args name a certificate instead, and
apiService.caBundle, or what an injector writes, verifies it.
*/}}
{{- define "kube-vitals.tlsType" -}}
{{- $type := eq .Values.tls.type "metrics-server" | ternary "self-signed" .Values.tls.type }}
{{- $isNamed := include "kube-vitals.hasFlag" (dict "root" . "names" "tls-cert-file") }}
{{- $isVerified := or .Values.apiService.caBundle (include "kube-vitals.hasInjector" .) }}
{{- if and (eq $type "self-signed") $isNamed $isVerified }}flags{{ else }}{{ $type }}{{ end }}
{{- end }}

{{/* "true" if an annotation of the APIServices lets cert-manager, or the service CA of OpenShift, write the caBundle. */}}
{{- define "kube-vitals.hasInjector" -}}
{{- $has := false }}
{{- range $key, $value := .Values.apiService.annotations }}
{{- $isInjector := or (hasPrefix "cert-manager.io/inject-" $key) (eq $key "service.beta.openshift.io/inject-cabundle") }}
{{- if and $isInjector $value (ne (toString $value) "false") }}{{ $has = true }}{{ end }}
{{- end }}
{{- if $has }}true{{ end }}
{{- end }}

{{/* The Secret that holds the serving certificate. tls.type=self-signed has none. */}}
{{- define "kube-vitals.tlsSecretName" -}}
{{- if eq (include "kube-vitals.tlsType" .) "existingSecret" }}
{{- required "tls.type=existingSecret: set tls.existingSecret.name to the Secret that holds tls.crt and tls.key" .Values.tls.existingSecret.name }}
{{- else if eq (include "kube-vitals.tlsType" .) "kube-vitals" }}
{{- printf "%s-serving" (include "kube-vitals.fullname" .) }}
{{- else }}
{{- printf "%s-tls" (include "kube-vitals.fullname" .) }}
{{- end }}
{{- end }}

{{/* The DNS names of the Service, as a YAML list; the API server verifies NAME.NAMESPACE.svc. */}}
{{- define "kube-vitals.dnsNames" -}}
{{- $service := printf "%s.%s" (include "kube-vitals.fullname" .) (include "kube-vitals.namespace" .) -}}
- {{ $service }}.svc
- {{ $service }}.svc.{{ .Values.tls.clusterDomain | default "cluster.local" }}
- {{ $service }}
{{- end }}

{{/* "true" if the API server does not verify the serving certificate. */}}
{{- define "kube-vitals.unverified" -}}
{{- if or (eq (toString .Values.apiService.insecureSkipTLSVerify) "true") (eq (include "kube-vitals.tlsType" .) "self-signed") }}true{{ end }}
{{- end }}

{{/*
The CA of the serving certificate in base64, as far as the chart knows it without creating it: from apiService.caBundle or
from the existing Secret. Empty with tls.type=kube-vitals, where the server writes the caBundle.
*/}}
{{- define "kube-vitals.knownCA" -}}
{{- if .Values.apiService.caBundle }}
{{- .Values.apiService.caBundle | b64enc }}
{{- else if and (eq (include "kube-vitals.tlsType" .) "existingSecret") .Values.tls.existingSecret.lookup }}
{{- $data := (lookup "v1" "Secret" (include "kube-vitals.namespace" .) .Values.tls.existingSecret.name).data | default dict }}
{{- coalesce (index $data "ca.crt") (index $data "tls.crt") | default "" }}
{{- end }}
{{- end }}

{{/*
The ConfigMap with that CA, with the CA that helm creates, or with the CAs of the server's own certificates, for clients that
verify the server.
*/}}
{{- define "kube-vitals.caConfigMapName" -}}
{{- printf "%s-ca" (include "kube-vitals.fullname" .) }}
{{- end }}

{{/*
The environment variables of the container, by name. Those that connect the server with the release's other objects are not in
args, so that patches of the manifests that replace args keep them; KUBE_VITALS_X_Y sets the flag --x-y.
*/}}
{{- define "kube-vitals.environment" -}}
KUBE_VITALS_SERVICE: "{{ include "kube-vitals.dnsNames" . | fromYamlArray | first }}:{{ .Values.service.port }}"
{{- if lt (include "kube-vitals.apiVersions" . | fromYamlArray | len) 2 }}
KUBE_VITALS_TLS_APISERVICES: {{ include "kube-vitals.apiServices" . | quote }}
{{- end }}
{{- if eq (include "kube-vitals.tlsType" .) "kube-vitals" }}
KUBE_VITALS_TLS_SECRET: {{ include "kube-vitals.tlsSecretName" . | quote }}
{{- if ne (.Values.tls.clusterDomain | default "cluster.local") "cluster.local" }}
KUBE_VITALS_TLS_NAMES: {{ include "kube-vitals.dnsNames" . | fromYamlArray | join "," | quote }}
{{- end }}
KUBE_VITALS_TLS_CA_CONFIGMAP: {{ include "kube-vitals.caConfigMapName" . | quote }}
{{- else if include "kube-vitals.mountsCertificate" . }}
KUBE_VITALS_TLS_CERT_FILE: /etc/kube-vitals/tls/tls.crt
KUBE_VITALS_TLS_PRIVATE_KEY_FILE: /etc/kube-vitals/tls/tls.key
{{- end }}
{{- with include "kube-vitals.kubeletServiceAccountName" . }}
KUBE_VITALS_KUBELET_SERVICE_ACCOUNT: {{ . | quote }}
{{- end }}
{{- with include "kube-vitals.kubeletPinsName" . }}
KUBE_VITALS_KUBELET_PINS: {{ . | quote }}
{{- end }}
{{- if include "kube-vitals.events" . }}
KUBE_VITALS_DEPLOYMENT: {{ include "kube-vitals.fullname" . | quote }}
{{- end }}
{{- end }}

{{/*
The section podDisruptionBudget without what has no effect in metrics-server's chart, as JSON: empty text, and 0 beside the
other number. If both are 0, maxUnavailable stays.
*/}}
{{- define "kube-vitals.podDisruptionBudget" -}}
{{- $budget := omit (.Values.podDisruptionBudget | default dict) }}
{{- range list "minAvailable" "maxUnavailable" }}
{{- $value := get $budget . }}
{{- if or (kindIs "invalid" $value) (eq (toString $value) "") }}{{ $_ := unset $budget . }}{{ end }}
{{- end }}
{{- if and (hasKey $budget "maxUnavailable") (has (toString $budget.minAvailable) (list "0" "0%")) }}
{{- $_ := unset $budget "minAvailable" }}
{{- else if and (hasKey $budget "minAvailable") (has (toString $budget.maxUnavailable) (list "0" "0%")) }}
{{- $_ := unset $budget "maxUnavailable" }}
{{- end }}
{{- toJson $budget }}
{{- end }}

{{/*
The resources of the container, as YAML. A request above the limit, which the API server rejects, is lowered to the limit. The
default limit of memory is raised to the request instead, since the user has set only the request.
*/}}
{{- define "kube-vitals.resources" -}}
{{- $resources := deepCopy (.Values.resources | default dict) }}
{{- range $name, $limit := $resources.limits }}
{{- $request := get ($resources.requests | default dict) $name }}
{{- if and $request $limit (gt (include "kube-vitals.quantity" $request | float64) (include "kube-vitals.quantity" $limit | float64)) }}
{{- if and (eq $name "memory") (eq (toString $limit) "1Gi") }}
{{- $_ := set $resources.limits $name $request }}
{{- else }}
{{- $_ := set $resources.requests $name $limit }}
{{- end }}
{{- end }}
{{- end }}
{{- with $resources }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The number that a quantity of Kubernetes stands for, such as 1024 for 1Ki. */}}
{{- define "kube-vitals.quantity" -}}
{{- $suffix := regexFind "[A-Za-z]+$" (toString .) }}
{{- $factors := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576
  "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- mulf (trimSuffix $suffix (toString .) | float64) (get $factors $suffix | float64) }}
{{- end }}

{{/* The folders that flags let the server write to, as a JSON list. Those of the container runtime need no volume. */}}
{{- define "kube-vitals.writtenFolders" -}}
{{- $files := dict }}
{{- range include "kube-vitals.flags" . | fromJsonArray }}
{{- $parts := regexFind "^--?(cert-dir|audit-log-path)=.*" . | trimPrefix "-" | trimPrefix "-" | splitn "=" 2 }}
{{- with $parts._0 }}{{ $_ := set $files . $parts._1 }}{{ end }}{{- /* the last one wins, also if it is empty */}}
{{- end }}
{{- $folders := list }}
{{- if and (get $files "cert-dir") (eq (include "kube-vitals.tlsType" .) "self-signed") }}
{{- $folders = append $folders (clean (get $files "cert-dir")) }}
{{- end }}
{{- $log := get $files "audit-log-path" }}
{{- if and $log (ne $log "-") (include "kube-vitals.hasFlag" (dict "root" . "names" "audit-policy-file")) }}
{{- $folders = append $folders (dir $log) }}
{{- end }}
{{- $needed := list }}
{{- range $folders }}
{{- if not (regexMatch "^/(dev|proc)(/|$)" .) }}{{ $needed = append $needed . }}{{ end }}
{{- end }}
{{- toJson $needed }}
{{- end }}

{{/*
What is mounted at each of these folders, as a JSON object: "writable" or "readOnly", as the deepest of extraVolumeMounts that
contains the folder, or "tmp", the volume of the chart. Empty if nothing is.
*/}}
{{- define "kube-vitals.folderMounts" -}}
{{- $mounts := dict }}
{{- range $folder := include "kube-vitals.writtenFolders" . | fromJsonArray }}
{{- $mounted := hasPrefix "/tmp/" (printf "%s/" $folder) | ternary "tmp" "" }}
{{- $deepest := "" }}
{{- range $.Values.extraVolumeMounts }}
{{- $path := clean (.mountPath | default "") }}
{{- if and (hasPrefix (printf "%s/" $path) (printf "%s/" $folder)) (ge (len $path) (len $deepest)) }}
{{- $deepest = $path }}
{{- $mounted = eq (toString .readOnly) "true" | ternary "readOnly" "writable" }}
{{- end }}
{{- end }}
{{- $_ := set $mounts $folder $mounted }}
{{- end }}
{{- toJson $mounts }}
{{- end }}

{{/* "true" if one of extraVolumeMounts is at /tmp, where the chart then mounts nothing. */}}
{{- define "kube-vitals.mountsTmp" -}}
{{- $isMounted := false }}
{{- range .Values.extraVolumeMounts }}
{{- if eq (clean (.mountPath | default "")) "/tmp" }}{{ $isMounted = true }}{{ end }}
{{- end }}
{{- if $isMounted }}true{{ end }}
{{- end }}

{{/*
The volume tmp, mounted at /tmp, as YAML: tmpVolume, or an empty folder if a flag or a mount needs it, as metrics-server's chart
always has one. Empty if there is none.
*/}}
{{- define "kube-vitals.tmpVolume" -}}
{{- $isNeeded := has "tmp" (include "kube-vitals.folderMounts" . | fromJson | values) }}
{{- $volumes := list }}
{{- range .Values.extraVolumes }}{{ $volumes = append $volumes .name }}{{ end }}
{{- range .Values.extraVolumeMounts }}
{{- if and (eq .name "tmp") (not (has "tmp" $volumes)) }}{{ $isNeeded = true }}{{ end }}
{{- end }}
{{- if and (has "tmp" $volumes) (or .Values.tmpVolume $isNeeded) }}
{{- fail "extraVolumes has a volume tmp, which is the name of the volume that the chart mounts at /tmp: rename it, or mount it at /tmp in extraVolumeMounts and remove tmpVolume" }}
{{- end }}
{{- if .Values.tmpVolume }}{{ toYaml .Values.tmpVolume }}{{ else if $isNeeded }}emptyDir: {}{{ end }}
{{- end }}

{{/* "true" if the serving certificate is in a Secret that the pods mount. */}}
{{- define "kube-vitals.mountsCertificate" -}}
{{- if has (include "kube-vitals.tlsType" .) (list "helm" "existingSecret" "cert-manager") }}true{{ end }}
{{- end }}

{{/*
The flags of defaultArgs and args, as a JSON list. Empty elements and spaces around an element have no effect. An element that
is not a flag, such as -1, is the value of the flag before it. --set args.0=FLAG makes a map, whose values are the elements. The
names of a map are flags where the value is none: {kubelet-insecure-tls: true}. metrics-server's chart prints the elements into
YAML without quotes, so there YAML removes the quotes around an element and a comment behind it. Numbers of YAML are floats,
which toString prints as 5.24288e+07.
*/}}
{{- define "kube-vitals.flags" -}}
{{- $elements := list }}
{{- $unquoted := "^(?:\"([^\"]*)\"|'([^']*)'|(.*?))(?:\\s+#.*)?$" }}
{{- $isFlag := "^--?[A-Za-z]" }}
{{- range $given := list .Values.defaultArgs .Values.args }}
{{- $byIndex := dict }}{{- /* range sorts the keys of a map as text, here with blanks before the digits */}}
{{- range $i, $element := $given }}
{{- $text := kindIs "float64" $element | ternary (toJson $element) (toString $element) | trim }}
{{- $text = kindIs "invalid" $element | ternary "" (regexReplaceAll $unquoted $text "${1}${2}${3}") }}
{{- if not (or (regexMatch "^[0-9]+$" (toString $i)) (regexMatch $isFlag $text) (kindIs "invalid" $element)) }}
{{- if not $text }}
{{- fail (printf "args and defaultArgs: %s has no value: set one, or true if the flag needs none, or null to omit it" $i) }}
{{- end }}
{{- $text = printf "--%s=%s" (trimAll "-" $i) $text }}
{{- end }}
{{- $_ := set $byIndex (printf "%9v" $i) $text }}
{{- end }}
{{- range $byIndex }}{{ $elements = append $elements . }}{{ end }}
{{- end }}
{{- $flags := list }}
{{- range compact $elements }}
{{- if regexMatch $isFlag . }}
{{- $flags = append $flags . }}
{{- else if $flags }}
{{- /* helm splits --set args={--kubelet-preferred-address-types=A,B} at the comma. */}}
{{- $isTypes := hasPrefix "--kubelet-preferred-address-types=" (last $flags) }}
{{- $flags = append (initial $flags) (printf "%s%s%s" (last $flags) ($isTypes | ternary "," "=") .) }}
{{- else if hasPrefix "/" . }}
{{- fail (printf "args and defaultArgs: %s is not a flag: remove it" .) }}
{{- else }}
{{- fail (printf "args and defaultArgs: %s is not a flag: set --%s" . .) }}
{{- end }}
{{- end }}
{{- $flags | toJson }}
{{- end }}

{{/* "true" if args or defaultArgs set a flag of one of the names, which are alternatives of a regular expression. */}}
{{- define "kube-vitals.hasFlag" -}}
{{- $pattern := printf "^--?(%s)(=|$)" .names }}
{{- range include "kube-vitals.flags" .root | fromJsonArray }}
{{- if regexMatch $pattern . }}true{{ end }}
{{- end }}
{{- end }}

{{/*
What disables the verification of kubelets: "flag", in args or defaultArgs, or "value", kubelet.insecureTLS. Empty if they are
verified. The last of several equal flags counts, and it may be false.
*/}}
{{- define "kube-vitals.kubeletsUnverifiedBy" -}}
{{- $flags := dict }}
{{- range include "kube-vitals.flags" . | fromJsonArray }}
{{- if regexMatch "^--?(kubelet-insecure-tls|deprecated-kubelet-completely-insecure)(=|$)" . }}
{{- $_ := set $flags (regexFind "[a-z-]+" (trimAll "-" .)) (not (regexMatch "=(0|f|F|false|FALSE|False)$" .)) }}
{{- end }}
{{- end }}
{{- if has true (values $flags) }}flag
{{- else if and .Values.kubelet.insecureTLS (not (hasKey $flags "kubelet-insecure-tls")) }}value
{{- end }}
{{- end }}

{{/*
The flags that configure the verification of kubelets. If args or defaultArgs contain one that has an effect, as with
metrics-server's chart, they replace the values, since the server rejects contradictory flags.
*/}}
{{- define "kube-vitals.kubeletTrust" -}}
{{- $unverifiedBy := include "kube-vitals.kubeletsUnverifiedBy" . }}
{{- if not (or (eq $unverifiedBy "flag") (include "kube-vitals.hasFlag" (dict "root" . "names" "kubelet-certificate-authority"))) }}
{{- if $unverifiedBy -}}
- --kubelet-insecure-tls
{{- else if .Values.kubelet.certificateAuthority -}}
- --kubelet-certificate-authority={{ .Values.kubelet.certificateAuthority }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The common fields of the endpoint of a ServiceMonitor and of a PodMonitor. Takes a dict of root ($) and monitor (its values).
Prometheus verifies the certificate with the CA in a ConfigMap, so that it does not need to read the Secret with the key. With
cert-manager, only the Secret has the CA. Without a CA it uses the system's roots, as the API server does. If the API server
does not verify the certificate, or does so by an injected CA, Prometheus does not, unless it sends a token.
*/}}
{{- define "kube-vitals.monitorEndpoint" -}}
path: /metrics
scheme: https
tlsConfig:
  {{- $isSelfSigned := eq (include "kube-vitals.tlsType" .root) "self-signed" }}
  {{- $hasUnknownCA := and (has (include "kube-vitals.tlsType" .root) (list "existingSecret" "flags")) (not (include "kube-vitals.knownCA" .root)) }}
  {{- $sendsToken := or (not .root.Values.metrics.enabled) .monitor.authorization }}
  {{- $isUnverified := or (include "kube-vitals.unverified" .root) (eq (include "kube-vitals.tlsType" .root) "flags") }}
  {{- if or $isSelfSigned (and $hasUnknownCA $isUnverified (not $sendsToken)) }}
  insecureSkipVerify: true
  {{- else }}
  serverName: {{ include "kube-vitals.dnsNames" .root | fromYamlArray | first }}
  {{- if or (has (include "kube-vitals.tlsType" .root) (list "kube-vitals" "helm")) (include "kube-vitals.knownCA" .root) }}
  ca:
    configMap:
      name: {{ include "kube-vitals.caConfigMapName" .root }}
      key: ca.crt
  {{- else if not $hasUnknownCA }}
  ca:
    secret:
      name: {{ include "kube-vitals.tlsSecretName" .root }}
      key: ca.crt
  {{- end }}
  {{- end }}
{{- with .monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with .monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .monitor.relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
