{{- define "mete.labels" -}}
app.kubernetes.io/name: mete
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "mete.selector" -}}
app.kubernetes.io/name: mete
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mete.image" -}}
{{ .context.Values.image.registry }}{{ .name }}:{{ .context.Values.image.tag | default .context.Chart.AppVersion }}
{{- end }}

{{- define "mete.host" -}}
{{ .Release.Name }}-server.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "mete.url" -}}
{{- if .Values.agent.server }}{{ .Values.agent.server }}
{{- else if .Values.server.enabled }}https://{{ include "mete.host" . }}:{{ .Values.server.service.port }}
{{- else }}{{ fail "agent.server is needed without server.enabled: the URL of a server, as https://mete.example.org:9797" }}
{{- end }}
{{- end }}
