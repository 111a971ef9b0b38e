{{- define "name" }}{{ .Chart.Name }}{{ end }}

{{- define "fullname" }}
{{- $name := include "name" . }}
{{- contains $name .Release.Name | ternary .Release.Name (print .Release.Name "-" $name) }}
{{- end }}

{{- define "selector" -}}
{app.kubernetes.io/name: {{ include "name" . }}, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- define "metadata" -}}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    app.kubernetes.io/name: {{ include "name" .root }}
    app.kubernetes.io/instance: {{ .root.Release.Name }}
    helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}
