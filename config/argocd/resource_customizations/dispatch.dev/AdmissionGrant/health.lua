local conditions = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    conditions[condition.type] = condition
  end
end

-- It is a job's own, and is held back with it.
for _, name in ipairs({"UngrantedStart", "Waiting"}) do
  local condition = conditions[name]
  if condition ~= nil and condition.status == "True" then
    return {status = "Degraded", message = condition.reason .. ": " .. condition.message}
  end
end
return {status = "Healthy"}
