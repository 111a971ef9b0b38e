{{/* The chart's name, as it stands in labels. */}}
{{- define "kube-vitals.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of the release's objects: the release's name where that already says kube-vitals. */}}
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

{{/* Labels that select the pods. They may never change over a release's life: a Deployment's selector is immutable. */}}
{{- define "kube-vitals.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kube-vitals.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kube-vitals.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "kube-vitals.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kube-vitals.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default (printf "v%s" $.Chart.AppVersion) .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret that holds the serving certificate, in every mode that has one. */}}
{{- define "kube-vitals.tlsSecretName" -}}
{{- if eq .Values.tls.type "existingSecret" }}
{{- required "tls.type is existingSecret: set tls.existingSecret.name to the Secret that holds tls.crt and tls.key" .Values.tls.existingSecret.name }}
{{- else if eq .Values.tls.type "kube-vitals" }}
{{- printf "%s-serving" (include "kube-vitals.fullname" .) }}
{{- else }}
{{- printf "%s-tls" (include "kube-vitals.fullname" .) }}
{{- end }}
{{- end }}

{{/* The names under which the Service is dialled, as a YAML list; the API server verifies NAME.NAMESPACE.svc. */}}
{{- define "kube-vitals.dnsNames" -}}
{{- $service := printf "%s.%s" (include "kube-vitals.fullname" .) (include "kube-vitals.namespace" .) -}}
- {{ $service }}.svc
- {{ $service }}.svc.{{ .Values.tls.clusterDomain }}
- {{ $service }}
{{- end }}

{{/* "true" when the API server does not verify the serving certificate. */}}
{{- define "kube-vitals.unverified" -}}
{{- if or .Values.apiService.insecureSkipTLSVerify (eq .Values.tls.type "self-signed") }}true{{ end }}
{{- end }}

{{/*
The flags that say how kubelets are trusted. A flag given in args or defaultArgs that decides the same, as
metrics-server's users have it there, takes the place of the values: the server refuses contradictory flags.
*/}}
{{- define "kube-vitals.kubeletTrust" -}}
{{- $given := false }}
{{- range concat .Values.defaultArgs .Values.args }}
{{- if regexMatch "^--(kubelet-certificate-authority|kubelet-insecure-tls|deprecated-kubelet-completely-insecure)(=|$)" . }}
{{- $given = true }}
{{- end }}
{{- end }}
{{- if not $given }}
{{- if .Values.kubelet.insecureTLS -}}
- --kubelet-insecure-tls
{{- else if .Values.kubelet.certificateAuthority -}}
- --kubelet-certificate-authority={{ .Values.kubelet.certificateAuthority }}
{{- end }}
{{- end }}
{{- end }}

{{/*
What a ServiceMonitor's and a PodMonitor's endpoint have in common. Takes a dict of root ($) and monitor (its values).
Prometheus verifies the certificate where the Secret is known to hold its CA.
*/}}
{{- define "kube-vitals.monitorEndpoint" -}}
path: /metrics
scheme: https
tlsConfig:
  {{- if has .root.Values.tls.type (list "kube-vitals" "helm" "cert-manager") }}
  serverName: {{ include "kube-vitals.dnsNames" .root | fromYamlArray | first }}
  ca:
    secret:
      name: {{ include "kube-vitals.tlsSecretName" .root }}
      key: ca.crt
  {{- else }}
  insecureSkipVerify: true
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
