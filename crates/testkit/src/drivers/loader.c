/* A Vulkan loader for Windows, as far as tools/wine.sh needs one: Wine's own knows no manifests. It creates an instance in each driver
 * that the variable or the registry names and speaks for the first that gives one. With FAKE_LOADER=deaf it hears no variable, as the
 * real one in a process with an administrator's rights. */
#include <windows.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *(*lookup)(void *instance, const char *name);
typedef int32_t (*create)(const void *info, const void *allocator, void **instance);

static lookup speaker;

/* Loads the driver of a manifest, whose library is named relative to it. */
static void load(const char *manifest, const void *info, const void *allocator, void **instance)
{
    char text[4096] = "", path[MAX_PATH];
    FILE *file = fopen(manifest, "rb");
    if (!file)
        return;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    static const char begin[] = "\"library_path\":\".\\\\";
    char *library = strstr(text, begin);
    const char *folder = strrchr(manifest, '\\');
    if (!library || !folder)
        return;
    library += strlen(begin);
    library[strcspn(library, "\"")] = 0;
    snprintf(path, sizeof path, "%.*s\\%s", (int)(folder - manifest), manifest, library);
    HMODULE driver = LoadLibraryExA(path, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
    lookup find = driver ? (lookup)(void *)GetProcAddress(driver, "vk_icdGetInstanceProcAddr") : NULL;
    void *made = NULL;
    if (find && ((create)find(NULL, "vkCreateInstance"))(info, allocator, &made) == 0 && !speaker) {
        speaker = find;
        *instance = made;
    }
}

static int32_t create_instance(const void *info, const void *allocator, void **instance)
{
    char name[MAX_PATH], mode[16] = "";
    GetEnvironmentVariableA("FAKE_LOADER", mode, sizeof mode);
    if (strcmp(mode, "deaf") != 0 && GetEnvironmentVariableA("VK_DRIVER_FILES", name, sizeof name)) {
        load(name, info, allocator, instance);
    } else {
        HKEY key;
        if (RegOpenKeyExA(HKEY_LOCAL_MACHINE, "SOFTWARE\\Khronos\\Vulkan\\Drivers", 0, KEY_QUERY_VALUE, &key) != 0)
            return -9;
        DWORD length = sizeof name, value, size = sizeof value;
        for (DWORD i = 0; RegEnumValueA(key, i, name, &length, NULL, NULL, (BYTE *)&value, &size) == 0; i++) {
            if (size == sizeof value && value == 0)
                load(name, info, allocator, instance);
            length = sizeof name, size = sizeof value;
        }
        RegCloseKey(key);
    }
    return speaker ? 0 : -9;
}

static int32_t version(uint32_t *out) { *out = (1u << 22) | (3u << 12); return 0; }

__declspec(dllexport) void *vkGetInstanceProcAddr(void *instance, const char *name)
{
    if (strcmp(name, "vkCreateInstance") == 0)
        return (void *)create_instance;
    if (strcmp(name, "vkEnumerateInstanceVersion") == 0)
        return (void *)version;
    return instance && speaker ? speaker(instance, name) : NULL;
}
