#version 450
layout(local_size_x = 64) in;
struct Ray { vec3 from; vec3 along; };
struct Hit { bool any; float at; uint what; };
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer S { vec4 spheres[8]; };
Hit nearest(Ray ray) {
    Hit hit = Hit(false, 1e30, 0u);
    for (uint k = 0u; k < 8u; k++) {
        vec3 d = ray.from - spheres[k].xyz;
        float b = dot(d, ray.along), c = dot(d, d) - spheres[k].w * spheres[k].w;
        float q = b * b - c;
        if (q < 0.0) continue;
        float t = -b - sqrt(q);
        if (t > 0.0 && t < hit.at) { hit.any = true; hit.at = t; hit.what = k; }
    }
    return hit;
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    Ray ray = Ray(vec3(float(i & 15u) - 8.0, float(i >> 4) - 8.0, -20.0), vec3(0.0, 0.0, 1.0));
    Hit hit = nearest(ray);
    y[i] = hit.any ? floor(hit.at * 16.0) + float(hit.what) : -1.0;
}
